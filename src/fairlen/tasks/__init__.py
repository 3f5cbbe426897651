"""Problems and their verifiers."""

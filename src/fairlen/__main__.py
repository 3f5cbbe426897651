from fairlen.cli import main

raise SystemExit(main())

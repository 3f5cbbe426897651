"use strict";
// Search of a site that is opened from its folder: browsers start no workers there, so a hidden frame stands for one.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve) => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(inner);
        inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}

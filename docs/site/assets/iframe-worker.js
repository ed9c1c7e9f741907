// A page opened as a file may not start workers; the theme's search needs one. There, a worker is a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<script>self.postMessage = data => self.reply(data)</scr" + "ipt>";
      frame.addEventListener("load", () => this.start(frame.contentWindow, url), { once: true });
      document.addEventListener("DOMContentLoaded", () => document.body.append(frame), { once: true });
      if (document.readyState !== "loading") document.body.append(frame);
    }

    start(inside, url) {
      inside.reply = data => {
        const event = new MessageEvent("message", { data });
        if (this.onmessage) this.onmessage(event);
        this.dispatchEvent(event);
      };
      const script = inside.document.createElement("script");
      script.src = new URL(url, document.baseURI);
      script.addEventListener("load", () => {
        this.inside = inside;
        this.waiting.splice(0).forEach(data => this.postMessage(data));
      });
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}

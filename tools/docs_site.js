// Browsers do not allow workers in pages opened from files. There, the search worker of the site runs in a hidden frame
// instead. This replaces a script that the theme would load from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.ready = new Promise((resolve) => frame.addEventListener("load", resolve));
      window.addEventListener("message", (event) => {
        if (event.source !== this.inside) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        if (this.onmessage) this.onmessage(event);
      });
      const page = frame.contentDocument;
      page.open();
      page.write(`<body><script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: resolve });
          document.body.append(script);
        })), Promise.resolve());
      <\/script><script src="${url}"><\/script>`);
      page.close();
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}

// Browsers start no worker for a page that lies on a disk. There the theme's search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.loaded = new Promise((resolve) => {
        const attach = () => {
          document.body.append(frame)
          const inside = frame.contentWindow
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = new URL(url, location.href)
          script.onload = () => resolve(inside)
          inside.document.body.append(script)
        }
        document.body ? attach() : document.addEventListener("DOMContentLoaded", attach)
      })
    }

    postMessage(data) {
      this.loaded.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }
  }
}

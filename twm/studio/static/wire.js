// The websocket to the studio: commands out, events in. Comes back by itself when the connection is lost.

import { unpack } from "./dom.js";

export class Wire extends EventTarget {
  #socket = null;
  #run = 0;
  #pause = 500; // milliseconds before the next attempt

  connect(run) {
    this.#run = run;
    const old = this.#socket;
    this.#socket = null;
    old?.close();
    this.#open();
  }

  #open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/api/dream?run=${this.#run}`);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    socket.onmessage = ({ data }) => {
      if (socket !== this.#socket) return;
      if (typeof data === "string") {
        const message = JSON.parse(data);
        if (message.type === "hello") this.#pause = 500; // let in; who is turned away asks less and less often
        this.#tell(message);
      } else {
        const { header, parts } = unpack(data);
        this.#tell({ ...header, parts });
      }
    };
    socket.onclose = ({ reason }) => {
      if (socket !== this.#socket) return;
      this.#tell({ type: "lost", reason });
      setTimeout(() => socket === this.#socket && this.#open(), this.#pause);
      this.#pause = Math.min(10_000, this.#pause * 2);
    };
  }

  #tell(message) {
    this.dispatchEvent(new CustomEvent(message.type, { detail: message }));
  }

  on(type, listener) {
    this.addEventListener(type, ({ detail }) => listener(detail));
  }

  send(type, fields = {}) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify({ type, ...fields }));
  }
}

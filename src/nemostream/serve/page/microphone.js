// Runs in the audio thread: gathers 40 ms of the microphone, as 16-bit samples, and its level.

const SECONDS = 0.04;

class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.samples = new Int16Array(Math.round(sampleRate * SECONDS));
    this.filled = 0;
    this.power = 0;
    this.port.onmessage = () => this.send(); // asked for what is left
  }

  process(inputs) {
    const channels = inputs[0];
    if (channels.length === 0) return true; // the microphone has not started yet
    for (let index = 0; index < channels[0].length; index++) {
      let value = 0;
      for (const channel of channels) value += channel[index] / channels.length;
      this.power += value * value;
      this.samples[this.filled++] = Math.max(-32768, Math.min(32767, Math.round(value * 32768)));
      if (this.filled === this.samples.length) this.send();
    }
    return true;
  }

  send() {
    const packet = this.samples.slice(0, this.filled);
    const decibels = 10 * Math.log10(this.power / Math.max(1, this.filled) + 1e-10);
    this.port.postMessage({ packet: packet.buffer, decibels }, [packet.buffer]);
    this.filled = 0;
    this.power = 0;
  }
}

registerProcessor("microphone", Microphone);

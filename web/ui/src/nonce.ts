// xterm.js makes <style> elements that depend on its size and colours. The page's Content Security Policy accepts them only with its nonce. The bundle
// has xterm.js take the nonce from here.
const nonce = document.querySelector<HTMLScriptElement>("script[nonce]")?.nonce ?? "";

export {};

declare global {
  var trlStyle: (document: Document) => HTMLStyleElement;
}

globalThis.trlStyle = (document) => {
  const style = document.createElement("style");
  style.nonce = nonce;
  return style;
};

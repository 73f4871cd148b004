// Takes the place of marked.js in a program that contains no files from npm: it only finds fenced code.

/** Splits a text into tokens, as marked's class does. */
export class Lexer {
  lex(text) {
    return lex(text);
  }
}

function lex(text) {
  const tokens = [];
  const fence = /^ {0,3}(`{3,}|~{3,})([^\n`]*)\n([\s\S]*?)(?:^ {0,3}\1[`~]*[ \t]*$|(?![\s\S]))/gm;
  let at = 0;
  // marked would escape a text. This one is the agent's own.
  const add = (raw) => raw.trim() && tokens.push({ type: "paragraph", raw, tokens: [{ type: "plain", raw: raw.trim() }] });
  for (const match of text.matchAll(fence)) {
    add(text.slice(at, match.index));
    tokens.push({ type: "code", raw: match[0], lang: match[2].trim(), text: match[3].replace(/\n$/, "") });
    at = match.index + match[0].length;
  }
  add(text.slice(at));
  return tokens;
}

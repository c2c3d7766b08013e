"""Set the formulas of the specification, which are plain text, as MathML: `x_y[i]/√(z)` in, `<math>...</math>` out.

Browsers render MathML themselves: no script, no font and no request is needed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>\d+(?:\.\d+)?|[½¼])"
    r"|(?P<ordinal>\w-th)"
    r"|(?P<power>[²³ᵀᵗ])"
    r"|(?P<word>[^\W\d](?:[^\W²³ᵀᵗ]|[̃̂]|\.(?=\w))*'?)"
    r"|(?P<operator><=|>=|==|[^\w\s])"
)
SYMBOLS = {"<=": "≤", ">=": "≥", "==": "=", "-": "−", "*": "⊙", "@": "·"}
POWERS = {"²": "<mn>2</mn>", "³": "<mn>3</mn>", "ᵀ": "<mi>T</mi>", "ᵗ": "<mi>t</mi>"}
CLOSING = {"(": ")", "[": "]", "|": "|", "‖": "‖"}
LONGEST = 100
"""The most characters of a line, if it can be broken at a comma."""
ACCENTS = "\u0302\u0303"
OVER = ("sum", "mean", "number")
"""Words that bind a variable, as in "sum over j of", and take what follows."""
BESIDE_NAMES = {"+", "-", "·", "*", "=", "<=", ">="}
ENDS_A_TERM = {"=", "+", "-", ",", ";", "<=", ">=", "<", ">", "==", "if", "else", "for", "otherwise", "where", "with"}
FUNCTIONS = {
    *(
        "exp",
        "ln",
        "tanh",
        "sin",
        "cos",
        "max",
        "min",
        "floor",
        "softmax",
        "argmax",
        "erf",
        "mod",
        "inf",
        "mean",
        "sum",
    ),
    *("mean", "sum", "relu", "gelu", "gelu_tanh", "silu", "rnn"),
}


@dataclass
class Node:
    """A piece of a formula: its MathML, its plain text, whether a space stands before it, and whether it is prose."""

    mathml: str
    text: str
    spaced: bool = False
    prose: bool = False
    inner: Sequence[Node] = field(default=(), repr=False)
    """What stands in these parentheses, which a fraction drops."""


def mathml(formula: str, names: Collection[str] = ()) -> str:
    """A formula as MathML, a line of its own for each part that `;  ` separates.

    names are those of arrays, options and parameters: other words are prose, unless they are called or indexed.
    """
    lines = [line for part in split(formula, ";") for line in fill(split(part, ",", keep=True))]
    return "\n".join(
        f'<math display="block" alttext="{escape(line)}"><mrow>{_join(Parser(line, names).parse())}</mrow></math>'
        for line in lines
    )


def split(text: str, separator: str, keep: bool = False) -> list[str]:
    """Split at a separator that a space follows and no bracket encloses; keep says whether the parts keep it."""
    parts, depth = [""], 0
    for character, following in zip(text, [*text[1:], ""], strict=True):
        depth += (character in "([") - (character in ")]")
        if character == separator and following == " " and depth == 0:
            parts[-1] += separator if keep else ""
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def fill(parts: Sequence[str]) -> list[str]:
    """Join the parts to as few lines as LONGEST allows."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) >= LONGEST:
            lines.append("")
        lines[-1] = f"{lines[-1]} {part}".strip()
    return lines


class Parser:
    """A recursive descent over the tokens of one line."""

    def __init__(self, line: str, names: Collection[str]) -> None:
        self.names = {*names, *(part for name in names for part in name.split("."))}
        self.tokens: list[tuple[str, str, bool]] = []
        spaced = False
        for match in TOKEN.finditer(line):
            kind = str(match.lastgroup)
            if kind != "space":
                self.tokens.append((kind, match.group(), spaced))
            spaced = kind == "space"
        self.at = 0

    def parse(self, closing: str = "") -> list[Node]:
        """The nodes up to a closing bracket, which is consumed, or to the end."""
        nodes: list[Node] = []
        while self.at < len(self.tokens):
            kind, text, spaced = self.tokens[self.at]
            if text == closing:
                self.at += 1
                break
            if text == "/":
                self.at += 1
                self._divide(nodes, spaced, closing)
            else:
                nodes += self._term(nodes, kind, text, spaced)
        return nodes

    def _term(self, before: list[Node], kind: str, text: str, spaced: bool) -> Iterator[Node]:
        self.at += 1
        if kind == "power" and before:
            self._raise(before, POWERS[text], text)
        elif text == "^" and before:
            self._raise(before, *self._operand())
        elif text == "√":
            inside, plain = self._operand()
            yield Node(f"<msqrt>{inside}</msqrt>", f"√{plain}", spaced)
        elif text == "[" and before and not spaced:
            inner = self.parse("]")
            base = before.pop()
            yield Node(f"<msub>{_row(base.mathml)}<mrow>{_join(inner)}</mrow></msub>", base.text, base.spaced)
        elif text == "floor" and self._next() == "(":
            self.at += 1
            yield Node(_fence("⌊", self.parse(")"), "⌋"), text, spaced)
        elif text in CLOSING:
            inner = self.parse(CLOSING[text])
            yield Node(_fence(text, inner, CLOSING[text]), text, spaced, inner=inner)
        elif kind == "ordinal":
            yield Node(f"<mi>{text[0]}</mi><mtext>-th</mtext>", text, spaced, prose=True)
        elif text in OVER and self._next() in ("over", "of"):
            yield self._reduction(text, spaced)
        elif kind == "word":
            yield self._word(text, spaced)
        elif kind == "number":
            yield Node(f"<mn>{text}</mn>", text, spaced)
        else:
            yield Node(f"<mo>{escape(SYMBOLS.get(text, text))}</mo>", text, spaced)

    def _reduction(self, word: str, spaced: bool) -> Node:
        """`sum over j of`, `mean over b of`, `mean of`, `number of`: the variable stands below."""
        below: list[Node] = []
        while self.at < len(self.tokens):
            kind, text, gap = self.tokens[self.at]
            if text == "of" and self._next(1) != "all":  # as in "all entries g of all gradients of"
                self.at += 1
                break
            if text == "over":
                self.at += 1
            else:
                below += self._term(below, kind, text, gap)
        large = "<mo>∑</mo>" if word == "sum" else f"<mi>{word}</mi>"
        if word != "sum" and not below:
            return Node(f"<mtext>{word} of</mtext>", word, spaced, prose=True)
        return Node(f"<munder>{large}<mrow>{_join(below)}</mrow></munder>" if below else large, word, spaced)

    def _word(self, word: str, spaced: bool) -> Node:
        if not self._is_name(word):
            return Node(f"<mtext>{escape(word)}</mtext>", word, spaced, prose=True)
        name = word.rstrip("'")
        numbered = re.fullmatch(r"([A-Za-z]+)(\d)", name)
        base, below = numbered.groups() if numbered else name.partition("_")[::2]
        if len(base) > 1 and len(below) > 1:  # two words, and not a letter with an index
            base, below = name, ""
        letter = len(base.strip(ACCENTS)) == 1
        written = f"<mi>{escape(base)}</mi>" if letter else f'<mi mathvariant="normal">{escape(base)}</mi>'
        if below:
            written = f"<msub>{written}<mi>{escape(below)}</mi></msub>"
        if word.endswith("'"):
            written = f'<mrow>{written}<mo lspace="0" rspace="0">′</mo></mrow>'
        return Node(written, word, spaced)

    def _is_name(self, word: str) -> bool:
        """Whether a word stands for an array or a number: it has a name, or a sign beside it, is called, or indexed."""
        kind, following, gap = self.tokens[self.at] if self.at < len(self.tokens) else ("", "", True)
        if word in FUNCTIONS or word in self.names:
            return True
        if word == "a" and kind == "word" and gap:
            return False
        before = self.tokens[self.at - 2][1] if self.at > 1 else ""
        beside = before in BESIDE_NAMES or following in BESIDE_NAMES or kind == "power"
        called = following in ("(", "[") and not gap
        return len(word.strip(ACCENTS)) == 1 or beside or called or bool(re.search(r"[_.'\d]|[A-Z].*[A-Z]", word))

    def _raise(self, before: list[Node], exponent: str, plain: str) -> None:
        base = before.pop()
        before.append(Node(f"<msup>{_row(base.mathml)}<mrow>{exponent}</mrow></msup>", base.text + plain, base.spaced))

    def _operand(self) -> tuple[str, str]:
        """The next piece, without its parentheses: the argument of a root or a power."""
        nodes: list[Node] = []
        while not nodes or nodes[-1].text in "-":
            kind, text, spaced = self.tokens[self.at]
            nodes += self._term(nodes, kind, text, spaced)
        while self.at < len(self.tokens) and self.tokens[self.at][1] == "[" and not self.tokens[self.at][2]:
            nodes += self._term(nodes, *self.tokens[self.at])
        return _without_parentheses(nodes), "".join(node.text for node in nodes)

    def _divide(self, nodes: list[Node], spaced: bool, closing: str) -> None:
        """Make a fraction: with spaces around the slash of whole products, otherwise of what touches it."""
        above: list[Node] = []
        while nodes:
            unary = nodes[-1].text == "-" and (len(nodes) == 1 or nodes[-2].text in (*ENDS_A_TERM, "sum"))
            if (nodes[-1].text in ENDS_A_TERM and not unary) or (unary and not spaced):
                break
            above.insert(0, nodes.pop())
            derivative = above[0].text == "d" and self._next() == "d"
            if derivative or (not spaced and above[0].spaced):
                break
        below: list[Node] = []
        while self.at < len(self.tokens):
            kind, text, gap = self.tokens[self.at]
            if text == closing or text in ENDS_A_TERM or text == "/" or (below and gap and not spaced):
                break
            below += self._term(below, kind, text, gap)
        gap = above[0].spaced if above else False
        fraction = f"<mfrac>{_row(_without_parentheses(above))}{_row(_without_parentheses(below))}</mfrac>"
        nodes.append(Node(fraction, "/", gap))

    def _next(self, further: int = 0) -> str:
        at = self.at + further
        return self.tokens[at][1] if at < len(self.tokens) else ""


def _without_parentheses(nodes: Sequence[Node]) -> str:
    if len(nodes) == 1 and nodes[0].inner and nodes[0].text == "(":
        return _join(nodes[0].inner)
    return _join(nodes)


def _fence(opening: str, inner: Sequence[Node], closing: str) -> str:
    opened, closed = f'<mo fence="true">{opening}</mo>', f'<mo fence="true">{closing}</mo>'
    return f"<mrow>{opened}{_join(inner)}{closed}</mrow>"


def _row(written: str) -> str:
    return f"<mrow>{written}</mrow>"


def _join(nodes: Sequence[Node]) -> str:
    """The nodes side by side: a thin space between factors, a wide one around prose."""
    parts: list[str] = []
    for position, node in enumerate(nodes):
        before = nodes[position - 1] if position else None
        if before is not None and node.spaced:
            if node.prose or before.prose:
                parts.append('<mspace width="0.4em"/>')
            elif not (node.mathml.startswith("<mo") or before.mathml.startswith("<mo")):
                parts.append('<mspace width="0.17em"/>')
        parts.append(node.mathml)
    return "".join(parts)

"""Verdicts of `math-verify` on answers of mathematics: pairs of a gold answer and a text.

    pip install math-verify==0.9.0 latex2sympy2_extended==1.11.0 antlr4-python3-runtime==4.13.2
    python tools/parity/mathematics.py > crates/gradus-metrics/tests/fixtures/mathematics.jsonl

The first line has the versions. Each other line: {"gold": …, "text": …, "correct": bool}.
"""

import importlib.metadata
import itertools
import json

from math_verify import parse, verify

# Values in several spellings. Within a group all mean the same; across groups none do.
GROUPS = [
    ["18", "18.0", r"\frac{36}{2}", r"\$18", "18.", r"2 \cdot 9", r"3\times 6", r"18 \text{ eggs}", r"\sqrt{324}"],
    ["1200", "1,200", "1{,}200", "1200.00", r"1.2 \times 10^3", r"\$1,200"],
    ["-3", r"-\frac{6}{2}", "2-5", "-3.0", r"-\sqrt{9}"],
    [r"\frac{1}{2}", "0.5", r"\dfrac{1}{2}", r"\tfrac12", "1/2", r"\frac{2}{4}", "2^{-1}", r"50\%", r"\frac12"],
    [r"\frac{1}{3}", "1/3", r"\frac{2}{6}", "0.333333"],
    [r"3\frac{1}{2}", r"\frac{7}{2}", "3.5", "7/2"],
    [r"\sqrt{2}", r"\frac{2}{\sqrt{2}}", r"2^{1/2}", r"\sqrt 2"],
    [r"2\sqrt{3}", r"\sqrt{12}", r"\frac{6}{\sqrt{3}}"],
    [r"\pi", r"\frac{2\pi}{2}"],
    [r"\frac{\pi}{6}", r"\pi/6", r"\arcsin\frac{1}{2}"],
    [r"x^2+2x+1", r"(x+1)^2", r"1 + x(x+2)", r"x^2 + 2 \cdot x + 1"],
    [r"\frac{x+1}{x-1}", r"1 + \frac{2}{x-1}"],
    [r"(1, 2)", r"\left(1, 2\right)", r"(\frac{2}{2}, \sqrt{4})"],
    [r"(2, 1)"],
    [r"[1, 2)", r"\left[1, \frac{4}{2}\right)"],
    [r"(1, 2, 3)", r"\left( 1,2,3 \right)"],
    [r"\{1, 2, 3\}", r"\{3, 2, 1\}", "1, 2, 3", "3, 1, 2"],
    [r"(-\infty, 3)", r"\left(-\infty,3\right)"],
    [r"(-\infty, -1] \cup [1, \infty)", r"\left(-\infty,-1\right]\cup\left[1,\infty\right)"],
    [r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"],
    [r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"],
    [r"2+3i", r"3i+2", r"2 + 3 i"],
    [r"\text{Evelyn}", r"\text{evelyn}", r"\textbf{Evelyn}"],
    [r"\text{(B)}", r"\text{B}"],
    [r"10!", "3628800"],
    [r"\binom{5}{2}", "10"],
    [r"2^{10}", "1024"],
    [r"\log_2 8", r"\frac{\log 8}{\log 2}", r"3 "],
    [r"\sin^2 x", r"(\sin x)^2", r"1-\cos^2 x"],
    [r"e^{2x}", r"(e^x)^2"],
    [r"|x-1|"],
    [r"\lfloor 3.7 \rfloor + 4", "7"],
    [r"y = 2x + 1", r"2x + 1 = y", r"y - 2x = 1", r"2x - y + 1 = 0"],
    [r"x < 5", r"5 > x"],
    [r"x \ge 2", r"2 \leq x"],
    [r"-1 < x < 4"],
    [r"\infty"],
    [r"-\infty"],
    [r"90^\circ", "90", r"90^{\circ}", r"90 \text{ degrees}"],
    [r"12 \text{ cm}^2", "12", r"12\mbox{ cm}^2"],
    [r"9\%", r"9 \%"],
    [r"\frac{a+b}{2}", r"\frac{a}{2}+\frac{b}{2}", r"0.5(a+b)"],
    [r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}"],
    [r"x=5", "5 "],
    [r"x_1 = 2"],
    [r"-\frac{3}{4}", r"\frac{-3}{4}", r"\frac{3}{-4}", "-0.75"],
    [r"\frac{1}{\sqrt{3}+1}", r"\frac{\sqrt{3}-1}{2}"],
    [r"\tan 45^\circ"],
    [r"6.02 \times 10^{23}"],
    ["123456789012345678901", "123,456,789,012,345,678,901"],
    ["123456789012345678902"],
    ["0"],
]

# How completions say it.
FORMS = [
    "The answer is ${}$.",
    "We add and find $7x$, so \\boxed{{{}}}",
    "First $a = 3$. Therefore the final answer is ${}$. I hope it is correct.",
    "Thus \\[ {} \\]",
    "so it is \\({}\\)",
]

# Texts as they are: extraction.
TEXTS = [
    ("18", "She has 16 - 3 - 4 = 9 eggs, and makes 9 * 2 = $18 every day.\n#### 18"),
    ("18", "She makes $18."),
    ("18", "She makes 18 dollars a day."),
    ("18", "**Answer:** 18"),
    ("18", "The answer is 18, not 20"),
    ("18", "answer: 17"),
    ("70000", "#### 70,000"),
    ("70000", "The profit is $70,000."),
    ("3", "2 + 1 = 3"),
    ("5", "I have no idea."),
    ("5", ""),
    ("0.25", "It is 25%"),
    ("25", "It is 25 percent"),
    ("1/2", "The probability is 1/2."),
    ("1/2", "The probability is 2/4."),
    ("20", "Answer: 4 * 5 = 20"),
    ("20", "The answer is 20 - not 30"),
    ("540", "He runs 3*3=9 sprints\nSo 9*60=540 meters\n#### 540"),
    ("-4", "The temperature is -4 degrees"),
    ("2", "\\boxed{1} and then \\boxed{2}"),
    ("7", "$x = 7$"),
    ("7", "x = 7"),
    ("4", "$2 + 2 = 4$"),
    ("6", "the final answer is 6. I hope this helps"),
    ("6", "The final answer to the riddle is 6 and not 7"),
    ("1,2", "The roots are $x = 1$ and $x = 2$."),
    ("1,2", "The roots are \\boxed{1} and \\boxed{2}."),
    ("12", "12 apples and 13 pears; the answer: 12"),
    ("3.14", "about 3.14"),
    ("3", "3."),
    ("10", "There are 10."),
    ("8", "so (4 + 4) = 8 which is it"),
    ("1000000", "It costs $1,000,000"),
    ("5", "5 5 5 6"),
    ("\\frac{3}{4}", "That is \\frac{3}{4} of the cake"),
    ("9", "$\\boxed{9}$"),
    ("9", "\\fbox{9}"),
    ("9", "\\boxed 9"),
    ("11", "```\n11\n```"),
    ("A", "The answer is $A$"),
]


def verdict(gold, text):
    return verify(parse(gold), parse(text))


def main():
    names = ["math-verify", "latex2sympy2_extended", "sympy", "antlr4-python3-runtime"]
    print(json.dumps({name: importlib.metadata.version(name) for name in names}))
    pairs = []
    for i, group in enumerate(GROUPS):
        for k, (gold, answer) in enumerate(itertools.product(group[:3], group)):
            pairs.append((f"${gold}$", FORMS[(i + k) % len(FORMS)].format(answer)))
        for k in (1, 2, 5):
            other = GROUPS[(i + k) % len(GROUPS)][0]
            pairs.append((f"${group[0]}$", FORMS[(i + k) % len(FORMS)].format(other)))
    pairs += [(f"${gold}$", text) for gold, text in TEXTS]
    for gold, text in pairs:
        print(json.dumps({"gold": gold, "text": text, "correct": verdict(gold, text)}))


if __name__ == "__main__":
    main()

"""Random answers in the style of GSM8K and MATH, for `mathematics.py`."""

import random
from fractions import Fraction
from math import comb, factorial, gcd


def group(n):
    return f"{n:,}"


def frac(a, b, form="frac"):
    sign = "-" if a < 0 else ""
    return f"{sign}\\{form}{{{abs(a)}}}{{{b}}}"


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def pairs(self, count):
        """Pairs of a gold answer and a text in the style of MATH: in seven of ten the text has the same value."""
        for i in range(count):
            same, other = getattr(self, KINDS[i % len(KINDS)])()
            gold = self.pick(*same[: (len(same) + 1) // 2])
            answer = self.pick(*same) if self.r.random() < 0.7 else self.pick(*other)
            yield self.pick(*GOLDS).format(gold), self.pick(*FORMS).format(answer)

    def plain_pairs(self, count):
        """Pairs in the style of GSM8K."""
        for _ in range(count):
            yield plain(self)

    # Each of these gives spellings of one value, and spellings of other values.
    def integer(self):
        n = self.pick(self.r.randint(0, 99), self.r.randint(100, 9999), self.r.randint(10_000, 9_999_999),
            -self.r.randint(1, 400))
        same = [str(n), group(n), f"{n}.0", f"{n}.00", f"\\${n}", f"\\${group(n)}", group(n).replace(",", "{,}"),
            group(n).replace(",", ",\\!"),
            f"{n} \\text{{ {self.pick('apples', 'dollars', 'miles per hour', 'cm', 'students')}}}",
            f"{n}\\text{{ {self.pick('kg', 'hours', 'ft')}}}", f"{n}\\,\\text{{{self.pick('m', 'km', 'square feet')}}}",
            f"{n}\\%", f"{n} \\mbox{{ inches}}^2", f"x = {n}", f"\\text{{Total}} = {n}", f"{n - 3} + 3",
            f"\\frac{{{2 * n}}}{{2}}", f"{n} ", f"{{{n}}}", f"{n}\\text{{ units}}", f"({n})", f"+{n}",
            f"{n} \\mathrm{{cm}}", f"\\boxed{{{n}}}"]
        other = [str(n + 1), f"{n}.5", f"{n}{self.r.randint(0, 9)}", f"-{n}" if n > 0 else str(-n), f"{n},{n}",
            f"\\frac{{{n}}}{{7}}", f"{n}x"]
        return same, other

    def decimal(self):
        a = self.r.randint(1, 99999)
        k = self.r.randint(1, 4)
        value = Fraction(a, 10**k)
        text = f"{a / 10 ** k:.{k}f}"
        same = [text, text + "0", frac(value.numerator, value.denominator), f"{value.numerator}/{value.denominator}",
            f"\\${text}", f"{text} \\text{{ liters}}", f"{a} \\times 10^{{-{k}}}", f"{a * 100 / 10 ** k:g}\\%",
            text.lstrip("0"), f"x={text}"]
        other = [f"{a / 10 ** k + 0.01:.{k + 2}f}", f"{a}", f"-{text}", frac(value.numerator + 1, value.denominator)]
        return same, other

    def fraction(self):
        a, b = self.r.randint(1, 60), self.r.randint(2, 40)
        g = gcd(a, b)
        a, b = a // g, b // g
        if b == 1:
            b = 7
            a = a if a % 7 else a + 1
        s = self.pick(1, -1)
        a *= s
        sign = "-" if a < 0 else ""
        m = self.r.randint(2, 5)
        same = [frac(a, b), frac(a, b, "dfrac"), frac(a, b, "tfrac"), f"{a}/{b}", f"\\frac{{{a}}}{{{b}}}",
            f"\\frac{{{-a}}}{{-{b}}}", frac(m * a, m * b), f"{a * m}/{b * m}", f"{sign}{abs(a)}\\div {b}",
            f"{sign}\\left(\\frac{{{abs(a)}}}{{{b}}}\\right)", f"{a} / {b}",
            f"{sign}{abs(a)} \\cdot \\frac{{1}}{{{b}}}",
            f"({b}/{abs(a)})^{{-1}}" if a > 0 else f"-({b}/{abs(a)})^{{-1}}", f"x = {frac(a, b)}", f"{a / b:.6f}",
            f"{a / b:.8f}"]
        if abs(a) < 10 and b < 10:
            same += [f"{sign}\\frac{abs(a)}{b}", f"{sign}\\frac {abs(a)} {b}", f"{sign}\\frac{abs(a)}{{{b}}}",
                f"{sign}\\frac{{{abs(a)}}}{b}"]
        if abs(a) > b:
            same += [f"{sign}{abs(a) // b}\\frac{{{abs(a) % b}}}{{{b}}}",
                f"{sign}{abs(a) // b} \\frac{{{abs(a) % b}}}{{{b}}}", f"{sign}{abs(a) // b} {abs(a) % b}/{b}"]
        other = [frac(a + 1, b), frac(b if a > 0 else -b, abs(a)), frac(-a, b), f"{a / b:.2f}", f"{a}", f"{a}:{b + 1}"]
        return same, other

    def percent(self):
        n = self.pick(self.r.randint(1, 100), round(self.r.uniform(1, 99), 1))
        same = [f"{n}\\%", f"{n} \\%", f"{n}%", f"{n}", f"{n / 100:.4g}", f"{n}\\text{{ percent}}",
            f"{n} \\text{{percent}}", f"\\frac{{{n}}}{{100}}", f"{n} percent"]
        other = [f"{n + 1}\\%", f"{n / 10}\\%", f"{n * 100}"]
        return same, other

    def radical(self):
        a, b = self.r.randint(2, 9), self.pick(2, 3, 5, 6, 7, 10)
        c = self.r.randint(2, 9)
        kind = self.r.randint(0, 3)
        if kind == 0:
            same = [f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}", f"{a} \\sqrt {{{b}}}", f"\\sqrt{{{b}}} \\cdot {a}",
                f"{a}\\cdot{b}^{{1/2}}", f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}", f"{a}\\cdot \\sqrt{{{b}}}"]
            if b < 10:
                same += [f"{a}\\sqrt{b}", f"{a}\\sqrt {b}"]
            other = [f"{a + 1}\\sqrt{{{b}}}", f"\\sqrt{{{a * b}}}", f"{a * b ** .5:.3f}", f"{b}\\sqrt{{{a}}}"]
        elif kind == 1:
            same = [f"\\frac{{{a}\\sqrt{{{b}}}}}{{{c}}}", f"\\frac{{{a}}}{{{c}}}\\sqrt{{{b}}}",
                f"\\frac{{{a * b}}}{{{c}\\sqrt{{{b}}}}}", f"{a}\\sqrt{{{b}}}/{c}",
                f"\\dfrac{{\\sqrt{{{a * a * b}}}}}{{{c}}}"]
            other = [f"\\frac{{{a}\\sqrt{{{b}}}}}{{{c + 1}}}", f"\\frac{{{a}}}{{{c}\\sqrt{{{b}}}}}"]
        elif kind == 2:
            same = [f"{a}+{c}\\sqrt{{{b}}}", f"{c}\\sqrt{{{b}}}+{a}", f"{a} + \\sqrt{{{c * c * b}}}",
                f"{c}\\sqrt{{{b}}} - (-{a})"]
            other = [f"{a}-{c}\\sqrt{{{b}}}", f"{a + c}\\sqrt{{{b}}}"]
        else:
            same = [f"\\sqrt[3]{{{b}}}", f"{b}^{{1/3}}", f"{b}^{{\\frac{{1}}{{3}}}}"]
            other = [f"\\sqrt{{{b}}}", f"\\sqrt[3]{{{b + 1}}}", f"3\\sqrt{{{b}}}"]
        return same, other

    def pi(self):
        a, b = self.r.randint(1, 12), self.r.randint(2, 9)
        g = gcd(a, b)
        a, b = a // g, b // g
        same = [f"\\frac{{{a}\\pi}}{{{b}}}", f"\\frac{{{a}}}{{{b}}}\\pi", f"{a}\\pi/{b}", f"\\frac{{{a}}}{{{b}}} \\pi",
            f"\\pi \\cdot \\frac{{{a}}}{{{b}}}", f"\\frac{{\\pi \\cdot {a}}}{{{b}}}"]
        if b == 1:
            same = [f"{a}\\pi", f"{a} \\pi", f"\\pi\\cdot {a}", f"{a}π", f"{a} \\cdot \\pi"]
        same += [same[0] + " \\text{ square units}", same[0] + "\\text{ cm}^2"]
        other = [f"\\frac{{{a + 1}\\pi}}{{{b}}}", f"{a * 3.14 / b:.2f}", f"{a / b:.4f}"]
        return same, other

    def power(self):
        b, e = self.r.randint(2, 9), self.r.randint(2, 9)
        same = [f"{b}^{{{e}}}", f"{b}^{e}", str(b**e), group(b**e), f"{b} \\cdot {b}^{{{e - 1}}}"]
        other = [f"{e}^{{{b + 10}}}", str(b**e + 1), f"{b}^{{{e + 1}}}"]
        return same, other

    def science(self):
        a, e = round(self.r.uniform(1.01, 9.99), 2), self.pick(self.r.randint(2, 12), -self.r.randint(1, 8))
        same = [f"{a} \\times 10^{{{e}}}", f"{a}\\cdot 10^{{{e}}}",
            f"{a} \\times 10^{e}" if 0 < e < 10 else f"{a}\\times10^{{{e}}}",
            f"{a}\\times 10^{{{e}}} \\text{{ m}}"]
        other = [f"{a} \\times 10^{{{e + 1}}}", f"{a}", f"{a}e{e}"]
        return same, other

    def interval(self):
        a = self.r.randint(-9, 5)
        b = a + self.r.randint(1, 9)
        l, h = self.pick("(", "["), self.pick(")", "]")
        same = [f"{l}{a}, {b}{h}", f"{l}{a},{b}{h}", f"\\left{l}{a}, {b}\\right{h}", f"x \\in {l}{a}, {b}{h}",
            f"{l}\\frac{{{2 * a}}}{{2}}, {b}.0{h}"]
        lo, hi = ("<" if l == "(" else "\\le"), ("<" if h == ")" else "\\leq")
        same += [f"{a} {lo} x {hi} {b}"]
        other = [f"{'[' if l == '(' else '('}{a}, {b}{h}", f"{l}{a}, {b + 1}{h}", f"{l}{b}, {a}{h}", f"{a}, {b}",
            f"\\{{{a}, {b}\\}}", f"({b}, {a})"]
        kind = self.r.randint(0, 3)
        if kind == 1:
            same = [f"(-\\infty, {a}{h}", f"\\left(-\\infty, {a}\\right{h}", f"x \\in (-\\infty, {a}{h}", f"x {hi} {a}",
                f"(-\\infty,{a}{h}"]
            other = [f"(-\\infty, {b}{h}", f"({a}, \\infty)", f"x > {a}"]
        if kind == 2:
            same = [f"(-\\infty, {a}{h} \\cup {l}{b}, \\infty)", f"{l}{b}, \\infty) \\cup (-\\infty, {a}{h}",
                f"\\left(-\\infty, {a}\\right{h} \\cup \\left{l}{b}, \\infty\\right)",
                f"x \\in (-\\infty, {a}{h} \\cup {l}{b}, +\\infty)", f"(-\\infty,{a}{h}\\cup{l}{b},\\infty)"]
            other = [f"(-\\infty, {a}{h}", f"(-\\infty, {a}{h} \\cap {l}{b}, \\infty)",
                f"(-\\infty, {a - 1}{h} \\cup {l}{b}, \\infty)"]
        return same, other

    def inequality(self):
        a, k = self.r.randint(-9, 20), self.r.randint(2, 5)
        v = self.pick("x", "n", "a")
        op, flip = self.pick(("<", ">"), (">", "<"), ("\\le", "\\ge"), ("\\geq", "\\leq"))
        same = [f"{v} {op} {a}", f"{a} {flip} {v}", f"{v}{op if op[0] != chr(92) else op + ' '}{a}"]
        other = [f"{v} {flip} {a}", f"{v} {op} {a + 1}", str(a), f"{v} = {a}"]
        return same, other

    def tuple(self):
        n = self.r.randint(2, 4)
        xs = self.r.sample(range(-9, 20), n)
        j = ", ".join(map(str, xs))
        same = [f"({j})", f"\\left({j}\\right)", f"({','.join(map(str, xs))})", f"( {j} )",
            f"({', '.join(f'{chr(92)}frac{{{2 * x}}}{{2}}' for x in xs)})",
            f"(x, y) = ({j})" if n == 2 else f"(x,y,z)=({j})"]
        ys = xs[:]
        ys[0] += 1
        zs = xs[::-1]
        other = [f"({', '.join(map(str, ys))})", f"({', '.join(map(str, zs))})", j, f"\\{{{j}\\}}", f"[{j}]"]
        return same, other

    def listed(self):
        n = self.r.randint(2, 4)
        xs = self.r.sample(range(-12, 30), n)
        ys = xs[:]
        self.r.shuffle(ys)
        join = lambda v, s=", ": s.join(map(str, v))
        same = [join(xs), join(ys), f"\\{{{join(xs)}\\}}", f"\\{{{join(ys, ',')}\\}}",
            f"\\left\\{{ {join(ys)} \\right\\}}", join(xs[:-1]) + f" \\text{{ and }} {xs[-1]}",
            join(ys[:-1]) + f", and {ys[-1]}", join([f"x = {x}" for x in xs]), f"x = {join(xs)}",
            join(xs[:-1]) + f" \\text{{ or }} {xs[-1]}", join(ys, ";")]
        zs = xs[:]
        zs[-1] += 1
        other = [join(zs), join(xs[:-1]), f"({join(xs)})", f"({join(ys)})", join(xs + [99])]
        return same, other

    def plus_minus(self):
        a, b = self.r.randint(1, 9), self.pick(2, 3, 5, 7)
        same = [f"{a} \\pm \\sqrt{{{b}}}", f"{a}+\\sqrt{{{b}}}, {a}-\\sqrt{{{b}}}",
            f"{a}-\\sqrt{{{b}}}, {a}+\\sqrt{{{b}}}", f"\\{{{a} \\pm \\sqrt{{{b}}}\\}}", f"x = {a} \\pm \\sqrt{{{b}}}"]
        other = [f"{a}+\\sqrt{{{b}}}", f"{a + 1} \\pm \\sqrt{{{b}}}", f"{a} \\mp \\sqrt{{{b}}}"]
        if self.r.random() < 0.4:
            same = [f"\\pm {a}", f"{a}, -{a}", f"-{a}, {a}", f"\\pm{a}", f"x = \\pm {a}", f"\\{{-{a}, {a}\\}}"]
            other = [str(a), f"\\pm {a + 1}", f"-{a}"]
        return same, other

    def polynomial(self):
        a, b = self.r.randint(1, 9), self.r.randint(1, 9)
        v = self.pick("x", "y", "t", "n")
        same = [f"({v}+{a})({v}-{b})", f"{v}^2 + ({a - b}){v} - {a * b}", f"({v}-{b})({v}+{a})",
            f"{v}^2+{a}{v}-{b}{v}-{a * b}", f"-{a * b} + {a}{v} - {b}{v} + {v}^2", f"({v} + {a}) \\cdot ({v} - {b})",
            f"{v}({v} + {a}) - {b}({v}+{a})", f"f({v}) = ({v}+{a})({v}-{b})", f"y = ({v}+{a})({v}-{b})"]
        other = [f"({v}+{a})({v}+{b})", f"{v}^2 - {a * b}", f"{a * b}", f"({v}+{a})({v}-{b}) + 1"]
        return same, other

    def rational(self):
        a, b = self.r.randint(1, 9), self.r.randint(2, 9)
        same = [f"\\frac{{x+{a}}}{{{b}}}", f"\\frac{{x}}{{{b}}} + \\frac{{{a}}}{{{b}}}", f"(x+{a})/{b}",
            f"\\frac{{1}}{{{b}}}(x+{a})", f"\\frac{{{a} + x}}{{{b}}}", f"\\frac{{2x+{2 * a}}}{{{2 * b}}}"]
        if self.r.random() < 0.5:
            same = [f"\\frac{{{a}}}{{x-{b}}}", f"-\\frac{{{a}}}{{{b}-x}}", f"{a}(x-{b})^{{-1}}", f"{a}/(x-{b})",
                f"\\frac{{{2 * a}}}{{2x-{2 * b}}}"]
        other = [f"\\frac{{x+{a + 1}}}{{{b}}}", f"\\frac{{x}}{{{b}}}", f"\\frac{{{a}}}{{x+{b}}}"]
        return same, other

    def line(self):
        m, c = self.r.randint(2, 9), self.r.randint(1, 12)
        same = [f"y = {m}x + {c}", f"{m}x + {c} = y", f"{m}x - y + {c} = 0", f"y - {m}x = {c}", f"y={m}x+{c}",
            f"2y = {2 * m}x + {2 * c}", f"y - {m}x - {c} = 0", f"{m}x + {c}", f"x = \\frac{{y - {c}}}{{{m}}}"]
        other = [f"y = {m}x - {c}", f"y = {m + 1}x + {c}", f"{c}", f"y = {m}x"]
        return same, other

    def matrix(self):
        r, c = self.pick((2, 2), (2, 1), (3, 1), (3, 3), (1, 3))
        xs = [[self.r.randint(-9, 9) for _ in range(c)] for _ in range(r)]

        def show(xs, kind="pmatrix", sep=" \\\\ ", amp=" & ", f=str):
            return f"\\begin{{{kind}}} " + sep.join(amp.join(f(x) for x in row) for row in xs) + f" \\end{{{kind}}}"

        ys = [row[:] for row in xs]
        ys[0][0] += 1
        flat = [x for row in xs for x in row]
        same = [show(xs), show(xs, "bmatrix"), show(xs, sep="\\\\", amp="&"), show(xs,
            f=lambda x: f"\\frac{{{2 * x}}}{{2}}"),
            f"\\left(\\begin{{array}}{{{'c' * c}}}" + "\\\\".join("&".join(map(str,
            row)) for row in xs) + "\\end{array}\\right)", f"A = {show(xs)}", f"\\mathbf{{v}} = {show(xs)}", show(xs,
            f=lambda x: f"{x}.0")]
        other = [show(ys), show([list(t) for t in zip(*xs)]), f"({', '.join(map(str, flat))})", show(xs, "vmatrix")]
        return same, other

    def complex(self):
        a, b = self.r.randint(-9, 9), self.r.randint(1, 9)
        same = [f"{a}+{b}i", f"{b}i+{a}" if a >= 0 else f"{b}i{a}", f"{a} + {b}i", f"z = {a}+{b}i", f"{a}+i{b}"]
        other = [f"{a}-{b}i", f"{a + 1}+{b}i", str(a), f"{a}+{b}", f"{a}+{b}j"]
        return same, other

    def text(self):
        w = self.pick("even", "odd", "Tuesday", "Monday", "ellipse", "parabola", "hyperbola", "Evelyn", "Carla",
            "neither", "east", "Yes", "No", "True", "False", "blue", "none", "Navin")
        same = [f"\\text{{{w}}}", f"\\text{{{w.lower()}}}", w, f"\\textbf{{{w}}}", f"\\mathrm{{{w}}}",
            f"\\text{{ {w} }}", f"\\mbox{{{w}}}", w if "i" in w.lower() else w.upper()]
        other = [f"\\text{{{self.pick('circle', 'Friday', 'John', 'west', 'both')}}}", f"\\text{{not {w}}}", "5"]
        if self.r.random() < 0.4:
            c = self.pick("A", "B", "C", "D", "E")
            same = [f"\\text{{({c})}}", f"\\text{{{c}}}", c, f"({c})", f"\\textbf{{({c})}}", f"\\mathrm{{{c}}}",
                f"\\text{{({c}) }} 5", c.lower()]
            other = [self.pick("A", "B", "C", "D") + "B", "F", "\\text{(F)}"]
        return same, other

    def angle(self):
        n = self.pick(30, 45, 60, 90, 120, 135, 22.5, 15)
        same = [f"{n}^\\circ", f"{n}^{{\\circ}}", f"{n}", f"{n} \\text{{ degrees}}", f"{n}^\\circ \\text{{C}}",
            f"{n} degrees", f"\\theta = {n}^\\circ"]
        other = [f"{n + 1}^\\circ", f"\\frac{{\\pi}}{{4}}", f"{n}^2"]
        return same, other

    def count(self):
        n, k = self.r.randint(4, 9), self.r.randint(2, 3)
        same = [f"\\binom{{{n}}}{{{k}}}", str(comb(n, k)), f"\\dbinom{{{n}}}{{{k}}}", f"\\frac{{{n}!}}{{{k}!{n - k}!}}",
            f"\\frac{{{n}!}}{{{k}! \\cdot {n - k}!}}", f"{{{n} \\choose {k}}}"]
        other = [str(comb(n, k) + 1), f"\\binom{{{n}}}{{{k - 1}}}", f"{n}!"]
        if self.r.random() < 0.4:
            same = [f"{n}!", str(factorial(n)), group(factorial(n)), f"{n} \\cdot {n - 1}!", f"{n}\\times{n - 1}!"]
            other = [f"{n - 1}!", str(factorial(n) + 1)]
        return same, other

    def log(self):
        b, e = self.r.randint(2, 5), self.r.randint(2, 5)
        same = [f"\\log_{{{b}}} {b ** e}", f"\\log_{b} {b ** e}", str(e), f"\\frac{{\\ln {b ** e}}}{{\\ln {b}}}",
            f"\\log_{{{b}}}({b ** e})", f"\\frac{{\\log {b ** e}}}{{\\log {b}}}"]
        other = [f"\\log_{{{b}}} {b ** e + 1}", str(e + 1), f"\\ln {b ** e}"]
        if self.r.random() < 0.5:
            same = [f"\\ln {b}", f"\\ln({b})", f"-\\ln \\frac{{1}}{{{b}}}", f"\\frac{{1}}{{2}}\\ln {b * b}",
                f"\\ln{{{b}}}"]
            other = [f"\\log {b}", f"\\ln {b + 1}", str(b)]
        return same, other

    def trig(self):
        k = self.r.randint(2, 5)
        return self.pick(([f"\\sin {k}x", f"\\sin({k}x)", f"\\sin\\left({k}x\\right)",
            f"\\cos(\\frac{{\\pi}}{{2}} - {k}x)", f"\\sin{{{k}x}}"], [f"\\cos {k}x", f"\\sin x", f"{k}\\sin x"]),
            ([ "\\frac{\\sqrt{3}}{2}", "\\sin\\frac{\\pi}{3}", "\\cos \\frac{\\pi}{6}", "\\sin(\\pi/3)",
            "\\frac{3}{2\\sqrt{3}}"], ["\\frac{1}{2}", "\\sin 60", "\\cos\\frac{\\pi}{3}"]), (["\\tan x",
            "\\frac{\\sin x}{\\cos x}", "\\tan(x)", "\\frac{1}{\\cot x}"], ["\\cot x", "\\sin x", "\\tan y"]),
            ([f"\\arctan {k}", f"\\tan^{{-1}} {k}", f"\\arctan({k})", f"\\tan^{{-1}}({k})"], [f"\\tan {k}",
            f"\\arctan {k + 1}", f"\\arcsin \\frac{{1}}{{{k}}}"]), ([f"\\cos^2 x", "(\\cos x)^2", "1 - \\sin^2 x",
            "\\cos^{2}(x)", "\\frac{1+\\cos 2x}{2}"], ["\\cos x^2", "\\sin^2 x", "\\cos 2x"]))

    def base(self):
        n, b = self.r.randint(10, 99), self.r.randint(5, 9)
        same = [f"{n}_{b}", f"{n}_{{{b}}}"]
        other = [f"{n + 1}_{b}", str(n)]
        return same, other

    def exponential(self):
        a, b = self.r.randint(2, 9), self.r.randint(2, 5)
        same = [f"{a}e^{{{b}x}}", f"{a} e^{{{b}x}}", f"{a}(e^x)^{b}", f"{a}\\cdot e^{{{b}x}}", f"{a}\\exp({b}x)"]
        other = [f"{a}e^{{{b + 1}x}}", f"{b}e^{{{a}x}}", f"{a}e^{{-{b}x}}"]
        if self.r.random() < 0.4:
            same = [f"{a}^{{{b}n}}", f"({a}^{b})^n", f"{a ** b}^n", f"{a}^{{n}} \\cdot {a}^{{{b - 1}n}}"]
            other = [f"{a}^n", f"{a}^{{{b + 1}n}}"]
        return same, other

    def variables(self):
        a, b = self.r.randint(2, 9), self.r.randint(2, 9)
        return self.pick(
            ([f"{a}a + {b}b", f"{b}b+{a}a", f"{a}a+{b}b", f"a\\cdot{a} + b\\cdot{b}"],
                [f"{a}a - {b}b", f"{b}a + {a}b" if a != b else "a+b", f"{a}x + {b}y"]),
            ([f"\\frac{{{a}ab}}{{c}}", f"{a}ab/c", f"\\frac{{{a}a}}{{c}}b", f"{a}a\\frac{{b}}{{c}}"],
                [f"\\frac{{{a}ab}}{{d}}", f"{a}abc"]),
            ([f"a_1 + {a}", f"{a} + a_{{1}}", f"a_{{1}}+{a}"], [f"a_2 + {a}", f"a + {a}"]),
            ([f"|x - {a}|", f"|{a} - x|", f"\\left|x-{a}\\right|", f"\\lvert x-{a} \\rvert"],
                [f"|x + {a}|", f"x - {a}"]),
            ([f"\\sqrt{{x^2 + {a}}}", f"(x^2+{a})^{{1/2}}", f"\\sqrt{{{a} + x^2}}", f"(x^2 + {a})^{{\\frac12}}"],
                [f"\\sqrt{{x^2}} + {a}", f"\\sqrt{{x + {a}}}"]),
            ([f"{a}xy^2", f"{a}y^2x", f"{a}x \\cdot y^2", f"{a}xy\\cdot y"], [f"{a}x^2y", f"{a}xy"]),
            ([f"\\alpha + {a}\\beta", f"{a}\\beta+\\alpha", f"{a} \\beta + \\alpha"],
                [f"\\alpha - {a}\\beta", f"{a}\\alpha + \\beta"]),
            (["\\frac{n(n+1)}{2}", "\\frac{n^2+n}{2}", "n(n+1)/2", "\\frac{1}{2}n(n+1)", "\\frac12 n^2 + \\frac12 n"],
                ["\\frac{n(n-1)}{2}", "n(n+1)"]),
        )

    def floor(self):
        a = round(self.r.uniform(1, 20), 1)
        n = int(a)
        if a == n:
            a += 0.5
        same = [f"\\lfloor {a} \\rfloor", str(n), f"\\left\\lfloor {a} \\right\\rfloor", f"|-{n}|",
            f"\\left|-{n}\\right|"]
        other = [f"\\lceil {a} \\rceil", str(n + 1), str(a)]
        return same, other


KINDS = ["integer", "integer", "integer", "decimal", "decimal", "fraction", "fraction", "fraction", "percent",
    "radical", "radical", "pi", "power", "science", "interval", "interval", "inequality", "tuple", "tuple", "listed",
    "listed", "plus_minus", "polynomial", "polynomial", "rational", "line", "matrix", "complex", "text", "text",
    "angle", "count", "log", "trig", "base", "exponential", "variables", "variables", "floor"]

FORMS = ["The answer is ${}$.", "We add and find $7x$, so \\boxed{{{}}}",
    "First $a = 3$. Therefore the final answer is ${}$. I hope it is correct.", "Thus \\[{}\\]", "so it is \\({}\\)",
    "$${}$$", "Final Answer: $\\boxed{{{}}}$", "**Answer:** ${}$", "There are $5$ of them.\n\n\\[\\boxed{{{}}}\\]\n",
    "Hence ${}$", "<think>maybe $4$</think> The final answer is \\boxed{{{}}}.", "\\boxed{{{}}} is what we get."]
GOLDS = ["${}$", "${}$", "${}$", "\\boxed{{{}}}", "\\[{}\\]"]

# GSM8K's style: numbers in plain text.
PLAIN = ["The answer is {}", "#### {}", "She has {} left.", "Answer: {}", "So the total is ${}.", "**{}**", "= {}",
    "The final answer is {}", "Final answer: {}", "It takes {} hours.", "They sold {} in all, which is the answer.",
    "{}", "Therefore, it costs ${} per month", "Step 1: 2 + 2 = 4\nStep 2: so we have {}", "the answer is **{}**",
    "Answer: x = {}", "The answer is: {} dollars", "It is {}%", "The answer is ${}", "Total = {}"]


def plain(m):
    r = m.r
    n = m.pick(r.randint(1, 99), r.randint(100, 99999), r.randint(1, 999999))
    kind = r.randint(0, 4)
    if kind == 0:
        d = r.randint(1, 99)
        gold = f"{n}.{d:02d}"
        says = [gold, f"{n:,}.{d:02d}", gold.rstrip("0"), f"{n}.{d + 1:02d}", f"{n},{d:02d}", str(n)]
    elif kind == 1:
        gold = f"{n:,}"
        says = [str(n), gold, f"{n}.00", f"{n:,}.00", str(n + 1), gold.replace(",", " "), f"-{n}", f"{n}.5"]
    elif kind == 2:
        a, b = r.randint(1, 9), r.randint(2, 9)
        gold = f"{a}/{b}"
        says = [gold, f"{a * 2}/{b * 2}", f"{a / b}", f"{a}/{b + 1}", f"{a} / {b}", f"\\frac{{{a}}}{{{b}}}",
            f"{a + b}/{b}"]
    elif kind == 3:
        gold = str(n)
        a = r.randint(1, 9)
        says = [f"{n - a} + {a}", f"{n}", f"{n} - {a}", f"{n * a} / {a}", f"({n} + {a}) - {a}", f"{n - a} + {a} = {n}",
            f"{n} = {n}", f"{a} * {n} = {a * n}", f"{n:,}", f"0{n}", f"{n - a}+{a}", f"{n}^1"]
    else:
        gold = str(n)
        says = [f"{n}", f"{n:,}", f"{n}.0", f"{n} or {n + 1}", f"about {n}", f"{n}th", f"{n}kg", f"{n}-{n + 5}",
            f"+{n}", f"({n})", f"{n}/1", f"€{n}", f"{n}!", f"not {n + 2} but {n}"]
    form = m.pick("#### {}", "{}", "so it is {0}\n#### {0}", "${}$")
    return form.format(gold), m.pick(*PLAIN).format(m.pick(*says))

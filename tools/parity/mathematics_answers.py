"""Answers in the style of GSM8K and MATH, written by hand, for `mathematics.py`."""

# Values in several spellings. All spellings within a group are equal; different groups are not.
GROUPS = [
    ["18", "18.0", r"\frac{36}{2}", r"\$18", r"2 \cdot 9", r"3\times 6", r"18 \text{ eggs}", r"\sqrt{324}"],
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
    [r"2+3i", r"3i+2"],
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

# More spellings, in the style of the answers of MATH.
MORE = [
    [r"p - q", "-q+p", r"p-q"],
    [r"6 - 5i", "-5i+6"],
    [r"11\sqrt2", r"11\sqrt{2}", r"\sqrt{242}"],
    [r"52_8", "52_{8}"],
    [r"2k", r"k+k", r"2\cdot k"],
    [r"0.\overline{3}", r"\frac13"],
    [r"7.5\%", "7.5", r"0.075"],
    [r"\$32,\!348", "32348", "32,348"],
    [r"5.4 \text{ cents}", "5.4"],
    [r"11,\! 111", "11111"],
    [r"3, 5, 7", "7, 5, 3", r"\{3,5,7\}"],
    [r"1,-2", "-2,1", r"-2 \text{ and } 1"],
    [r"\left( \frac{3}{2}, -13 \right)", "(1.5, -13)", r"(3/2,-13)"],
    [r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}", r"\begin{pmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{pmatrix}"],
    [r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty) \cup (-\infty,2)"],
    [r"[-2,7]", r"\left[-2,7\right]"],
    [r"x \in [-2,7]", "[-2,7]"],
    [r"y^4-2y^3+7y^2+y-5", "-5+y+7y^2-2y^3+y^4"],
    [r"\frac{3}{56}", "3/56", "0.0535714"],
    [r"-\frac{35}{9}", r"\frac{-35}{9}", r"-3\frac{8}{9}"],
    [r"\frac{243}{625}", "0.3888", r"(3/5)^5\cdot5"],
    [r"3\sqrt{13}", r"\sqrt{117}", r"\sqrt{9\cdot13}"],
    [r"\left(3, \frac{\pi}{2}\right)", r"(3,\pi/2)", r"(3, 0.5\pi)"],
    [r"\frac{\sqrt{3}}{2}", r"\sin 60^\circ", r"\sqrt{0.75}"],
    [r"\cos\frac{\pi}{3}", r"\frac12", "0.5"],
    [r"\frac{x}{2}-3", r"\frac{x-6}{2}", "0.5x - 3"],
    [r"(x-2)(x+3)", r"x^2+x-6", r"(x+3)(x-2)"],
    [r"a^3b^2", r"b^2a^3", r"a^3 \cdot b^2"],
    [r"\frac{1}{x^2}", r"x^{-2}"],
    [r"\sqrt{x^2+1}", r"(x^2+1)^{1/2}", r"(1+x^2)^{0.5}"],
    [r"\ln 2", r"-\ln\frac12"],
    [r"\log_{10} 1000"],
    [r"2^{2n}", r"4^n"],
    [r"n(n+1)/2", r"\frac{n^2+n}{2}", r"\frac{n(n+1)}{2}"],
    [r"\sqrt[3]{8}", "2"],
    [r"\sqrt[3]{2}", r"2^{1/3}"],
    [r"7!", "5040"],
    [r"\binom{8}{3}", "56", r"\frac{8!}{3!5!}"],
    [r"C(8,3)"],
    [r"\frac{2}{3}\pi", r"\frac{2\pi}{3}", r"2\pi/3"],
    [r"x \leq -1", r"-1 \geq x", r"x\le-1"],
    [r"x > 3", r"3<x", r"x \gt 3"],
    [r"x \neq 3"],
    [r"-2 \le x \le 5"],
    [r"f(x) = x^2", r"x^2"],
    [r"y = -\frac{1}{2}x + 4", r"2y = -x + 8", r"x + 2y = 8"],
    [r"x=2, y=3", r"(2,3)"],
    [r"x = 1 \text{ or } x = 4", "1, 4", r"x=4, x=1"],
    [r"\pm 3", r"3, -3", r"\{-3, 3\}"],
    [r"\emptyset", r"\{\}"],
    [r"\text{no solution}"],
    [r"\text{True}", r"\text{true}", "True"],
    [r"\text{June 20}", r"\text{june 20}"],
    [r"\text{(C)}", "C", r"(\text{C})"],
    [r"10\text{ inches}", "10", r"10\,\text{inches}"],
    [r"3 \text{ m/s}", "3"],
    [r"45^\circ", r"45"],
    [r"1{,}000{,}000", "1000000", r"10^6", r"1\times10^6"],
    [r"6.02 \times 10^{23}", r"6.02 \cdot 10^{23}", r"6.02\times10^{23}"],
    [r"1.5 \times 10^{-3}", "0.0015"],
    [r"-0", "0.0"],
    [r"\frac{0}{5}", "0"],
    [r"|-7|", "7.0", r"\left|-7\right|"],
    [r"\lceil 2.1 \rceil", "3"],
    [r"17 \div 2", r"\frac{17}{2}", "8.5"],
    [r"1:2", r"\frac{1}{2}"],
    [r"3\frac12", "3.5"],
    [r"\frac{1+\sqrt{5}}{2}", r"0.5+0.5\sqrt5", r"\frac12+\frac{\sqrt5}{2}"],
    [r"\sqrt{2}+\sqrt{3}", r"\sqrt3+\sqrt2"],
    [r"1.41421", r"\sqrt{2}"],
    [r"3.14159", r"\pi"],
    [r"0.333", r"\frac{1}{3}"],
    [r"33\frac{1}{3}\%"],
    [r"\mathbf{5}", "5"],
    [r"\boxed{8}", "8"],
    [r"\left\{1,2\right\}", "1,2"],
    [r"(1,2),(3,4)", r"(3,4),(1,2)"],
    [r"[[1,2],[3,4]]"],
    [r"\begin{bmatrix}1&0\\0&1\end{bmatrix}", r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}"],
    [r"\left(\begin{array}{cc}1&2\end{array}\right)", r"\begin{pmatrix}1&2\end{pmatrix}"],
    [r"1 + x + x^2 + \cdots"],
    [r"\alpha + \beta", r"\beta+\alpha"],
    [r"a_1 + a_2", r"a_2 + a_1", r"a_{1} + a_{2}"],
    [r"\theta", r"\theta "],
    [r"x_{n+1}"],
    [r"\tan x", r"\frac{\sin x}{\cos x}"],
    [r"2\sin x\cos x", r"\sin 2x", r"\sin(2x)"],
]

# Whole texts, for extraction.
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
    ("9", "\\boxed 9"),
    ("11", "```\n11\n```"),
    ("A", "The answer is $A$"),
]

# Gold answers in the format of data sets, and misleading completions.
RAW = [
    ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72", "She sold 48 + 24 = 72 clips. #### 72"),
    ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72", "48 + 24 = 71"),
    ("#### 1,250", "The total is $1,250.00."),
    ("#### 1,250", "The total is 1250 dollars."),
    ("#### 7.5", "It takes 7.5 hours."),
    ("#### 7.5", "It takes 7 1/2 hours."),
    ("#### -5", "The answer is -5."),
    ("#### 18", "The answer is $18.00"),
    ("#### 18", "The answer is 18 dollars, which is less than 20 dollars."),
    ("#### 18", "18 is the first number, but the answer is 19."),
    ("#### 18", "Total: 18\nCheck: 18 = 18"),
    ("#### 18", "**18**"),
    ("#### 18", "**Final answer: 18**"),
    ("#### 18", "Final Answer: $\\boxed{18}$"),
    ("#### 18", "The final answer is $\\boxed{18}$. I hope it is correct."),
    ("#### 18", "ANSWER = 18"),
    ("#### 18", "<answer>18</answer>"),
    ("#### 18", "Answer: eighteen"),
    ("#### 18", "The answer is:\n\n18"),
    ("#### 18", "The answer is\n$$18$$"),
    ("#### 18", "The answer is $$\\frac{36}{2}=18$$"),
    ("#### 18", "so $x = 17 + 1 = 18$"),
    ("#### 18", "18%"),
    ("#### 18", "18 km/h"),
    ("#### 18", "(18)"),
    ("#### 18", "18, 19"),
    ("#### 18", "between 18 and 20"),
    ("#### 3", "Step 1: 5\nStep 2: 3"),
    ("#### 3", "1. first\n2. second\n3. third"),
    ("#### 3", "I think it's 3!"),
    ("#### 3", "3?"),
    ("#### 0", "There are 0 left."),
    ("#### 0", "None are left."),
    ("#### 100000", "100 000"),
    ("#### 100000", "100,000 people"),
    ("#### 100000", "1e5"),
    ("#### 0.5", ".5"),
    ("#### 0.5", "0,5"),
    ("#### 0.5", "1/2"),
    ("#### 0.5", "50%"),
    ("#### 0.5", "one half"),
    ("$\\frac{1}{2}$", "\\boxed{\\frac{1}{2}"),
    ("$\\frac{1}{2}$", "\\boxed{\\frac{1}{2}}."),
    ("$\\frac{1}{2}$", "\\boxed{\\dfrac{1}{2} \\text{ cups}}"),
    ("$\\frac{1}{2}$", "\\boxed{}"),
    ("$\\frac{1}{2}$", "\\boxed{x = \\frac{1}{2}}"),
    ("$\\frac{1}{2}$", "$\\boxed{\\frac{1}{2}}$ or $\\boxed{0.5}$"),
    ("$\\frac{1}{2}$", "\\boxed{\\text{one half}}"),
    ("$\\frac{1}{2}$", "\\boxed{1}/\\boxed{2}"),
    ("$(1,2)$", "\\boxed{1,2}"),
    ("$1,2$", "\\boxed{(1,2)}"),
    ("$\\{1,2\\}$", "\\boxed{1 \\text{ and } 2}"),
    ("$1,2$", "\\boxed{1} and \\boxed{3}"),
    ("$1,2$", "$x=1,2$"),
    ("$x=1,2$", "\\boxed{1,2}"),
    ("$5$", "\\boxed{5} is not right, so \\boxed{6}"),
    ("$6$", "\\boxed{5} is not right, so \\boxed{6}"),
    ("$5$", "The answer is $5$. Wait, the answer is $6$."),
    ("$6$", "The answer is $5$. Wait, the answer is $6$."),
    ("$5$", "$5$ and then 6"),
    ("$6$", "$5$ and then 6"),
    ("$5$", "$$5$$ $$6$$"),
    ("$5$", "\\[ x = 5 \\]"),
    ("$5$", "\\begin{align} x &= 5 \\end{align}"),
    ("$5$", "\\begin{equation} 5 \\end{equation}"),
    ("$5$", "$x = 5$ since $y = 6$"),
    ("$5$", "$5 \\text{ and not } 6$"),
    ("$5$", "$\\text{five}$"),
    ("$5$", "$5\\%$"),
    ("$5\\%$", "$5$"),
    ("$5\\%$", "$0.05$"),
    ("$5\\%$", "5 percent"),
    ("$x^2$", "$x^{2}$."),
    ("$x^2$", "$y^2$"),
    ("$x^2$", "\\boxed{f(x)=x^2}"),
    ("$2x+3$", "\\boxed{3+2x}"),
    ("$2x+3$", "\\boxed{y=3+2x}"),
    ("$\\text{yes}$", "\\boxed{\\text{Yes}}"),
    ("$\\text{yes}$", "\\boxed{yes}"),
    ("$\\text{yes}$", "yes"),
    ("$B$", "\\boxed{B}"),
    ("$B$", "\\boxed{\\text{(B)}}"),
    ("$B$", "The answer is B."),
    ("$B$", "\\boxed{b}"),
]

# Units, written in several ways.
UNITS = ["cm", "km", "m", "kg", "g", "mph", "hours", "minutes", "ft", "feet", "inches", "years", "days", "meters", "miles",
    "apples", "people", "pounds", "lbs", "oz", "s", "sec", "min", "h", "hr", "yards", "degrees", "square units", "square feet",
    "sq m", "units", "cents", "students", "gallons", "liters", "k", "x", "eggs", "km/h"]
UNIT_FORMS = [r"\boxed{{{n}{unit}}}", r"\boxed{{{n} {unit}}}", r"${n}{unit}$", r"\boxed{{{n}\text{{ {unit}}}}}", "The answer is {n}{unit}."]

# Texts in the style of GSM8K, with an equation after the announcement.
ANNOUNCEMENTS = ["The answer is", "Answer:", "The final answer is", "**Final Answer**:", "Therefore the answer is equal to", "answer"]
EQUATIONS = ["9 * 2 = $18", "9 * 2 = 18", "9 * 2 = **18**", "9 * 2 = **$18**", "10 + 8 = 18 dollars", "18 because 9*2 = 18",
    "16 - 3 - 4 = 9 eggs, 9 * 2 = $18", "18, since 20-2 = 18 and 3+4 = 7", "2 * 9 = 18 and not 3 * 9 = 27", "$18.00",
    "(10+8) = 18", "18 (9*2=18)", "18 (since 20-2=18 and 1+1=2)", "$18 and not $20", "18.\nExplanation: 20-2 = 18, 1+1 = 2",
    "18 - 20", "10 + 9 = $19", "€18", "18 € and 2 = 2", "x = 18", "about 18.2, so 18", "not 17 but is 18", "$18$ or $19$", "[18] eggs"]

# Pairs of a gold answer and a text: notation that is read, or not, and decimals.
NOTATION = [
    ("$100$", "Answer: 10**2"),
    ("$100$", "The answer is 10**2 ."),
    ("$2^{10}$", "= 2 ** 10"),
    ("$2^{10}$", "= 2 ** 11"),
    ("$2^{10}$", "$2**10$"),
    ("$14$", "5 7+7"),
    ("$18$", "Step 3 4+14"),
    ("$18$", "2(9)"),
    ("$\\frac12$", "\\boxed{1 \\over 2}"),
    ("$\\frac12$", "\\boxed{{1 \\over 2}}"),
    ("$\\frac12$", "\\boxed{2 \\over 1}"),
    ("$3+\\frac12$", "$3 + {1 \\over 2}$"),
    ("$\\frac12$", "\\boxed{\\text{1/2}}"),
    ("$\\frac12$", "$\\textbf{1 / 2}$"),
    ("$\\frac12$", "\\boxed{\\text{1/3}}"),
    ("$\\frac12$", "\\boxed{\\mathbf{\\frac{1}{2}}}"),
    ("$\\frac12$", "$\\text{\\frac{1}{2}}$"),
    ("$2x$", "$\\mathbf{2x}$"),
    ("$18$", "\\boxed{\\text{18 apples}}"),
    ("$\\frac{n(n+1)}{2}$", "\\boxed{\\binom{n+1}{2}}"),
    ("$\\frac{n(n+1)}{2}$", "\\boxed{\\binom{n}{2}}"),
    ("$\\binom{n}{3}$", "$\\frac{n(n-1)(n-2)}{6}$"),
    ("$\\sqrt2$", "\\boxed{sqrt(2)}"),
    ("$\\sqrt2$", "$sqrt(3)$"),
    ("$\\infty$", "\\boxed{infinity}"),
    ("$\\infty$", "$-infinity$"),
    ("$(0, \\infty)$", "$(0, infinity)$"),
    ("$\\emptyset$", "$∅$"),
    ("$70000$", "\\boxed{7E4}"),
    ("$70000$", "$7.0E+4$"),
    ("$0.0007$", "$7E-4$"),
    ("$70000$", "$7e4$"),
    ("$70000$", "\\boxed{7E5}"),
    ("$70000$", "$70'000$"),
    ("$18$", "\\boxed{17.9999999}"),
    ("$18$", "\\boxed{18.000000001}"),
    ("$18$", "\\boxed{18.000}"),
    ("$18.5$", "\\boxed{18.50000001}"),
    ("$18.0$", "\\boxed{17.9999999}"),
    ("$17.9999999$", "$18$"),
    ("$\\frac{36}{2}$", "17.9999999"),
    ("$\\frac13$", "0.3333333333"),
    ("$50\\%$", "0.49999999"),
    ("$100\\%$", "0.9999999"),
    ("$0$", "$0.0000000001$"),
    ("$18$", "so [18] it is"),
    ("$18$", "[18]"),
    ("$18$", "It costs $5. The answer is $18$."),
    ("$18$", "The final answer is 18. 3 + 4 = 7"),
    ("$18$", "The final answer is 17. \\boxed{18}"),
    ("$18$", "\\boxed{18}. The final answer is 17."),
    ("$18$", "\\boxed{18"),
    ("$18$", "\\boxed{18 so {it} is"),
    ("$\\frac12$", "\\boxed{\\frac{1}{2}, I think"),
    ("$\\frac12$", "$\\frac{1}{2}$ or $0.5$"),
    ("$x=18$", "\\boxed{x = 18m}"),
    ("$18kg$", "18"),
    ("$2\\sqrt3$", "\\boxed{2\\sqrt{3}cm}"),
    ("$10\\pi$", "\\boxed{10\\pi cm}"),
    ("$18$", "$18 °C$"),
]

# Single answers: each is compared with itself, in other contexts, and with others.
ANSWERS = r"""
\text{(A), (C)}
\frac{3}{2},-1
6:7
1\frac{4}{5}
\dfrac{9}{7}
0.\overline{3}
x^3+3x-6
\frac{\sqrt{21}}{7}
\left(\frac{1}{2},\frac{3}{2}\right)
\left( 3, \frac{\pi}{2} \right)
2516_8
5x - 7y + 11z + 4 = 0
\begin{pmatrix} -18 & -49 & 96 \\ 6 & 8 & 10 \end{pmatrix}
\frac{1}{2} \log 3
-\frac{1}{2}+\frac{i\sqrt{3}}{2}
[0,\frac{1}{2}]
2 \times 3 = 6
x=-1
y=2x^2-1
3R^2
\sqrt{a^2+b^2}
a=b=3
A,B,C
\text{B, C}
n=3 \text{ or } 4
1, 2, \ldots, 10
\approx 3.14
\pi r^2
\frac{1}{4}\left(\sqrt{5}-1\right)
1-\frac{1}{e}
\cot x
\sec^2 x
\tan^{-1} x
\left[ \frac{\pi}{2}, \frac{3\pi}{2} \right]
(-2,1) \cup (1,\infty)
\{-2,3\}
-2+7i, -2-7i
8\sqrt{2} \text{ cm}
864 \mbox{ inches}^2
13 \text{ cm}^2
\frac{270}7\text{ degrees}
.0000672
5.5
.5
2^{2000}
6^{20}
1{,}048{,}576
-\frac{\sqrt{3}}{2}
\frac{14}{3}
\frac{3840289}{261}
(\sqrt{3}-1)(\sqrt{2}+1)
2k+2
4x^4 + x^3 - 2x^2 + x + 3
-z^6 + 3z
x^2 - 2x + 1 = 0
\frac{(x-2)^2}{9} + \frac{(y+1)^2}{4} = 1
x^2 + y^2 = 25
y \le 3
2 < x \le 5
x \in [-1,1]
\mathbb{R}
\text{all real numbers}
(-\infty,0)\cup(0,\infty)
\mathbb{R} \setminus \{0\}
\emptyset
\text{undefined}
\infty
0
-1
\pm 2
3 \pm 2 \sqrt{2}
x = 2 \pm \sqrt{3}
a^2 - b^2
(a+b)(a-b)
\frac{a}{b+c}
\frac{1}{1-x}
\log_2 3
\ln 2 + 1
e^{\pi}
e
i
-i
2i
\frac{1+i}{2}
5!
\binom{10}{3}
120^\circ
\text{Monday}
\text{east}
\text{Yes}
\text{No}
\text{(E)}
C
D
\angle ABC
\overline{AB}
\triangle ABC
AB
p \land q
0.12
12.5\%
\frac{5}{12}\%
\$12.50
\$1,000
3:4:5
10:30
\text{10:30 a.m.}
7:00
\frac{2}{3}x
f(x)=\frac{1}{x}
f^{-1}(x) = 2x
a_n = 2n+1
a_n=\frac{n}{n+1}
x_1=1, x_2=2
x=1, y=2
(x,y)=(1,2)
x=1,y=2,z=3
(1,2,3)
\left\{\frac{1}{2}, 3\right\}
[1,2]\cup[3,4]
\lfloor x \rfloor
|x|
\max(a,b)
\gcd(12, 18)
10 \pmod{11}
10 \equiv -1
n \equiv 3 \pmod 7
3^{n+1}
2^{n}-1
\frac{n(n+1)(2n+1)}{6}
\sqrt[4]{2}
\sqrt{2\sqrt{3}}
\frac{\sqrt{2}+\sqrt{6}}{4}
\cos 15^\circ
\frac{\pi^2}{6}
\theta = \frac{\pi}{3}
r = 2\cos\theta
\mathbf{i} + 2\mathbf{j}
\begin{pmatrix} 1 \\ -2 \\ 3 \end{pmatrix}
\begin{bmatrix} a & b \\ c & d \end{bmatrix}
\langle 1,2,3 \rangle
\vec{v}
\overrightarrow{AB}
t^7
-5t^2
15mn
m+n
\frac{mn}{m+n}
9\pi
36\pi\text{ cubic inches}
\frac{4}{3}\pi r^3
1+2+3
1 + 2x + 3x^2
\frac{x^2}{2}+C
x\ln x - x + C
y' = 2x
\frac{dy}{dx} = 2x
12 \text{ and } 15
\text{The function is even}
11 \text{ R } 3
\text{June 5}
5 \text{ feet } 6 \text{ inches}
2\text{ hours }30\text{ minutes}
\frac{3}{4} \text{ cup}
1\text{ : }2
4\,000
4 000
1 \times 10^5
3.0\times10^{8}
2e
-\pi
\pi+1
n \ge 5
a>b
x>2 \text{ and } x<5
x<2 \text{ or } x>5
x \ne 0, 1
x = 0, 1
""".strip().split("\n")

# Texts for which the verdict of gradus differs, with the reason.
STOP = "a full stop or a comma at the end is no part of an answer"
IMAGINARY = "i may stand apart from its factor, and powers of it are computed"
FACTOR = "inequalities are equal up to a factor, in either direction"
SIGNS = "more signs and commands are read: °, ∞, √, ×, –, angle brackets, \\varnothing, the natural logarithm as \\log_e, % behind a space"
UNIT = "more units are read: with a blank at the end, a capital letter or a power, and dollars and inches"
VARIABLE = "the letters of a unit may be variables"
LAST = "the last side of an equation counts, even without spaces, behind an annotation, or if other sides cannot be read"
WHOLE = "a number in front of an equals sign is read to its end"
BRACES = "arguments without braces are read"
OVER = "\\over divides everything in its braces"
OUTSIDE = "\\dfrac outside of a formula is read"
TWICE = "a value and the same value as a percentage are one value"
BASE = "a number in one base is not that numeral in another base"
BOX = "\\fbox is a box"
REPEATED = "equal values of a tuple count each"
POWER = "decimals in products and powers are exact"
SUM = "sums and integrals are not computed"

DIFFERENT = [
    ("$18$", "so it is \\(18.\\)", STOP),
    ("$3$", "so it is \\(3.\\)", STOP),
    ("$7/6$", "Total = 7 / 6.", STOP),
    ("#### 331185", "The answer is (331185).", STOP),
    ("$\\text{Navin}$", "The answer is $\\text{Navin.}$", STOP),
    ("$18$", "\\boxed{18,}", STOP),
    ("$2\\frac{1}{3}$", "The final answer is 7/3. I hope it is correct.", STOP),
    ("$2+3i$", "Thus \\[2 + 3 i\\]", IMAGINARY),
    ("$2 + 3 i$", "The answer is $3i+2$.", IMAGINARY),
    ("$5+3\\cdot i$", "\\boxed{5+3i}", IMAGINARY),
    ("$4+5i$", "so it is $i(5 - 4i)$", IMAGINARY),
    ("$-1$", "\\boxed{e^{i\\pi}}", IMAGINARY),
    ("$4a < 56$", "\\boxed{a < 14}", FACTOR),
    ("$8 \\ge x$", "so it is \\(5x \\le 40\\)", FACTOR),
    ("$-2 \\le x \\le 5$", "The answer is $5 \\ge x \\ge -2$.", FACTOR),
    ("$45$", "so it is \\(45°\\)", SIGNS),
    ("$90^\\circ$", "so it is \\(90\\degree\\)", SIGNS),
    ("$(-\\infty, 0)$", "so it is \\((-∞, 0)\\)", SIGNS),
    ("$(1,2)$", "The answer is $\\langle 1, 2 \\rangle$.", SIGNS),
    ("$\\ln 2$", "Thus \\[\\log_e 2\\]", SIGNS),
    ("$73.52$", "Thus \\[ 73.52 \\text{ liters} \\]", UNIT),
    ("$3$", "Thus \\[ 3 \\text{ m/s} \\]", UNIT),
    ("$-\\frac12$", "\\boxed{–0.5}", SIGNS),
    ("$3\\sqrt5$", "$3√5$", SIGNS),
    ("$123000$", "The answer is 1.23 × 10^5", SIGNS),
    ("$\\emptyset$", "$\\varnothing$", SIGNS),
    ("$18$", "\\boxed{18\\,%}", SIGNS),
    ("$18$", "\\boxed{18°C}", SIGNS),
    ("$18$", "\\boxed{18 dollars}", UNIT),
    ("$12.50$", "$12.50 dollars$", UNIT),
    ("$18$", "$18in$", UNIT),
    ("$18$", "\\boxed{18 Hours}", UNIT),
    ("$18$", "\\boxed{18 cm^2}", UNIT),
    ("$18$", "$18 m^3$", UNIT),
    ("$3t$", "$2t + t$", VARIABLE),
    ("$2ab$", "$ab+ab$", VARIABLE),
    ("$2t+3s$", "\\boxed{3s+2t}", VARIABLE),
    ("$1+2i$", "\\boxed{1+2\\mathrm{i}}", VARIABLE),
    ("#### 18", "The answer is therefore 10+8=18.", LAST),
    ("#### 18", "Answer: 9*2=$18", LAST),
    ("#### 18", "The answer is 20 - 2 = <<20-2=18>>18", LAST),
    ("#### 18", "The final answer is 36 * 50% = 18", LAST),
    ("#### 18", "The final answer is $9 * $2 = $18", LAST),
    ("$\\frac12$", "\\boxed{P(X>1)=\\frac12}", LAST),
    ("#### 18", "The answer is 18 = x", WHOLE),
    ("$\\sqrt2$", "\\boxed{2^\\frac12}", BRACES),
    ("$2$", "\\boxed{\\sqrt[3] 8}", BRACES),
    ("$10$", "$\\dbinom52$", BRACES),
    ("$0.0015$", "$1.5*10^-3$", BRACES),
    ("$2\\sqrt2$", "$2 sqrt(2)$", BRACES),
    ("$\\frac{x+1}{2}$", "$x+1 \\over 2$", OVER),
    ("$\\frac{x+1}{2}$", "\\boxed{{x+1 \\over 2}}", OVER),
    ("$\\frac34$", "The answer is \\dfrac{3}{4}.", OUTSIDE),
    ("$\\frac12$", "$\\frac{1}{2}$ or $50\\%$", TWICE),
    ("$29_{6}$", "Thus \\[29_{5}\\]", BASE),
    ("$9$", "\\fbox{9}", BOX),
    ("$(13, 17, 3, 3)$", "Hence $13, 17, 3, 3$", REPEATED),
    ("$7.48 \\times 10^{-5}$", "**Answer:** $187/2500000$", POWER),
    ("$123456789$", "\\boxed{1.23456789 \\times 10^8}", POWER),
    ("$\\sqrt2$", "$2^{0.5}$", POWER),
    ("$6$", "\\boxed{\\sum_{i=1}^{3} i}", SUM),
    ("$\\frac12$", "\\boxed{\\int_0^1 x dx}", SUM),
]

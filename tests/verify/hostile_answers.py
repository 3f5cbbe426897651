r"""Answers that explode, and answers over which algebra raises: what models under training come to write."""

BOMBS: dict[str, str] = {
    "tower": "9^{9^{9^{9}}}", "power": "3^{400000000}", "power of a power": "{(7^{7^{7}})}^{7^{7}}",
    "factorial of a power": "(10^{10})!", "factorial": "20000000!", "factorials": "((50!)!)!",
    "binomial": r"\binom{10^9}{5\cdot10^8}", "binomial of factorials": r"\binom{30!}{15!}",
    "expansion": "(1+x)^{100000}", "expansion of three": "(x+y+z)^{3000}",
    "quotient of powers": r"\frac{x^{20000}-1}{x-1}", "sum": r"\sum_{n=1}^{10^9}\frac{1}{n^2+\sin n}",
    "product": r"\prod_{n=1}^{10^8}(1+\frac{1}{n^3})", "sum of powers": r"\sum_{n=1}^{10^7}n^n",
    "integral": r"\int_0^{1}\int_0^{1}\int_0^{1}\frac{\sin(xyz+e^{x+y})}{1+x^7+y^9+z^{11}+\cos(x^y)}dxdydz",
    "integral without a form": r"\int_0^{\infty}\frac{\sin(x^{x})e^{-x^3}}{\ln(1+x^{\sin x})+x^{11}}dx",
    "limit": r"\lim_{x\to\infty}\frac{x^{x^{x}}+\sin(x^{x})}{(x+\cos x)^{x^{x}}}",
    "parentheses": "(" * 3000 + "5" + ")" * 3000, "fractions": r"\frac{1}{1+" * 800 + "5" + "}" * 800,
    "roots": r"\sqrt{1+" * 1000 + "5" + "}" * 1000,
    "roots of roots": "+".join(rf"\sqrt{{{n}+\sqrt{{{n + 1}+\sqrt{{{n + 2}}}}}}}" for n in range(2, 60)),
    "cosines": "".join(rf"\cos({n}x)\sin({n + 1}x)" for n in range(1, 60)),
    "matrix": r"\begin{pmatrix}" + r"\\".join("&".join(["x"] * 60) for _ in range(60)) + r"\end{pmatrix}",
    "matrix power": r"\begin{pmatrix}x&1\\1&x\end{pmatrix}^{100000}", "digits": "7^{" + "9" * 300 + "}",
}  # fmt: skip

RAISING: dict[str, str] = {
    "division by zero": r"\frac{1}{0}", "zero by zero": r"\frac{0}{0}", "logarithm of zero": r"\log_{1} 0 + \frac{1}{0}",
    "interval to nowhere": r"(\frac{1}{0}, i)", "chain of relations": r"1 < x < y < 2 = z",
    "relation of sets": r"\{1,2\} < [3,4)", "interval of matrices": r"[\begin{pmatrix}1\end{pmatrix}, 3)",
    "matrix of two shapes": r"\begin{pmatrix}1&2\\3\end{pmatrix}",
    "matrix and number": r"\begin{pmatrix}1&2\\3&4\end{pmatrix} + 1", "unfinished": r"\frac{1}{",
}  # fmt: skip

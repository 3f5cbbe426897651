r"""Answers and cells that try to run code, reach a network, or change a later verdict; each must be no more than text.

`write_attacks` writes them for one marker: a file that none of them may make.
"""

from pathlib import Path

PYTHON: dict[str, str] = {
    "call": "open('PATH', 'w')",
    "import": "__import__('os').system('touch PATH')",
    "exec": "exec(\"open('PATH', 'w')\")",
    "subscript of a class": "[license.__class__[TEXT] for license.__class__.__class_getitem__ in [eval]]",
    "subscript of another class": "[help.__class__[TEXT] for help.__class__.__class_getitem__ in [eval]]",
    "subscript of an object": "[quit[TEXT] for quit.__class__.__getitem__ in [eval]]",
    "matrix product": "[license @ TEXT for license.__class__.__matmul__ in [eval]]",
    "membership": "[TEXT in credits for credits.__class__.__contains__ in [eval]]",
    "comparison": "[copyright < TEXT for copyright.__class__.__lt__ in [eval]]",
    "format of an object": "[f'{license:{TEXT}}' for license.__class__.__format__ in [eval]]",
    "another scorer": "[0 for object.score_answer in [lambda *given: 1.0]]",
    "another scorer, with parentheses": "setattr(object, 'score_answer', lambda *given: 1.0)",
    "another list of characters": "[[] for object._board_to_string in [lambda *given: given[0]]]",
    "walrus": "(y := open('PATH', 'w'))",
    "lambda": "(lambda: open('PATH', 'w'))()",
    "decorator": "@exec\n@(lambda f: \"open('PATH', 'w')\")\ndef f(): pass",
    "f-string": "f\"{open('PATH', 'w')}\"",
    "starred": "[*open('PATH', 'w')]",
    "conditional": "1 if open('PATH', 'w') else 2",
    "fullwidth letters": "ｏｐｅｎ('PATH', 'w')",
    "bold letters": "𝐞𝐯𝐚𝐥(\"open('PATH', 'w')\")",
    "subclasses": "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0](['touch', 'PATH'])",
    "subclasses without parentheses": "[c for c in type.__subclasses__]",
    "format string": "'{0.__class__.__init__.__globals__}'.format(license)",
    "attribute": "x.__class__.__mro__[-1].__subclasses__()",
    "getattr": "getattr(__builtins__, 'op' + 'en')('PATH', 'w')",
    "socket": "__import__('socket').create_connection(('127.0.0.1', PORT))",
    "request": "__import__('urllib.request').request.urlopen('http://127.0.0.1:PORT')",
    "generator": "sum(1 for _ in open('PATH', 'w'))",
    "line continuation": "1\\\n+open('PATH', 'w').fileno()",
}  # fmt: skip
SYMPY: dict[str, str] = {
    "sympify": "sympify(\"open('PATH', 'w')\")", "S": "S(\"open('PATH', 'w')\") + x",
    "argument": "sin(\"open('PATH', 'w')\")", "number": "Rational(\"open('PATH', 'w')\")",
    "symbol": "Symbol(\"open('PATH', 'w')\") + C", "function": "Function(\"open('PATH', 'w')\")(x)",
    "factorial": "(\"open('PATH', 'w')\")!", "substitution": "x.subs(x, \"open('PATH', 'w')\")",
    "lambdify": "lambdify(x, 'x', modules=[{'x': open('PATH', 'w')}])(1)",
    "preview": "preview(x, viewer='file', filename='PATH')",
    "attribute of a number": "(1).__class__.__base__.__subclasses__()",
    "numexpr": "numexpr.evaluate(\"open('PATH', 'w')\")",
}  # fmt: skip
OTHERS: dict[str, str] = {
    "shell": "$(touch PATH)", "backticks": "`touch PATH`", "semicolon": "1; touch PATH", "pipe": "1 | tee PATH",
    "latex": r"\immediate\write18{touch PATH}\input{|touch PATH}", "lua": r"\directlua{os.execute('touch PATH')}",
    "pickle": "cos\nsystem\n(S'touch PATH'\ntR.", "yaml": "!!python/object/apply:os.system ['touch PATH']",
    "jinja": "{{ cycler.__init__.__globals__.os.system('touch PATH') }}",
    "hydra": "${oc.env:HOME} ${eval:\"open('PATH', 'w')\"}",
    "jsonpickle": '{"py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["touch PATH"]}]}',
    "entity": '<!DOCTYPE a [<!ENTITY b SYSTEM "http://127.0.0.1:PORT/">]><a>&b;</a>',
    "script": "<script>fetch('http://127.0.0.1:PORT')</script>", "spreadsheet": "=cmd|' /C touch PATH'!A0",
    "precision": "1E+999999",
}  # fmt: skip
ATTACKS = {**PYTHON, **SYMPY, **OTHERS}


def write_attacks(path: Path, port: int) -> dict[str, str]:
    """Return the attacks by name."""
    call = f"open('{path}', 'w')"
    text = f'"{call}"'.replace("(", r"\x28").replace(")", r"\x29")
    words = {"PATH": str(path), "PORT": str(port), "TEXT": text}
    found = {}
    for name, attack in ATTACKS.items():
        for word, value in words.items():
            attack = attack.replace(word, value)
        found[name] = attack
    return found

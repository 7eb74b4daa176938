"""Renders the corpus in a folder with Jinja2, for comparison with our interpreter.

Usage: template_oracle.py FOLDER. Prints one JSON object a line: {"template", "case", "text"} or, for
what Jinja2 refuses, {"template", "case", "error"}. The environment is that of Hugging Face's
transformers: an immutable sandbox, trim_blocks and lstrip_blocks on, loop controls, and a `tojson`
without sorting and escaping. The clock stands at 1 February 2026, 03:04:05 UTC.
"""

import datetime
import json
import pathlib
import sys

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("missing: python3-jinja2")
    sys.exit(0)

NOW = datetime.datetime(2026, 2, 1, 3, 4, 5, tzinfo=datetime.timezone.utc)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def make_environment():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


def render(environment, name, source, cases):
    try:
        compiled = environment.from_string(source)
    except Exception as error:  # Python's own compiler may refuse it too
        for case in range(len(cases)):
            print(json.dumps({"template": name, "case": case, "error": str(error)}))
        return
    for case, context in enumerate(cases):
        result = {"template": name, "case": case}
        try:
            result["text"] = compiled.render(**context)
        except Exception as error:  # whatever it is, we must refuse too
            result["error"] = str(error)
        print(json.dumps(result))


def main():
    folder = pathlib.Path(sys.argv[1])
    environment = make_environment()

    def read(name):
        # Line ends must stay as they are.
        return (folder / name).read_bytes().decode("utf-8")

    conversations = [json.loads(line) for line in read("conversations.jsonl").split("\n") if line]
    for path in sorted(folder.glob("*.jinja")):
        render(environment, path.name, read(path.name), conversations)
    context = json.loads(read("expressions_context.json"))
    for number, line in enumerate(read("expressions.txt").split("\n")):
        if line:
            render(environment, f"expressions.txt:{number + 1}", line, [context])


main()

#!/usr/bin/env python3
"""Prints the reference table of all configuration keys, in Markdown, from configs/schema.json.

  config_reference.py                 print the table
  config_reference.py --check FILE    exit 1 if the table between FILE's markers is another
  config_reference.py --write FILE    put the table between FILE's markers

The markers are lines of their own: <!-- config-reference --> and <!-- /config-reference -->.
"""
import argparse
import json
import pathlib
import sys

BEGIN, END = "<!-- config-reference -->", "<!-- /config-reference -->"
SCHEMA = pathlib.Path(__file__).resolve().parent.parent / "configs" / "schema.json"


def bounds(node):
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    parts = []
    if low is not None:
        parts.append(f"≥ {low:g}" if isinstance(low, float) else f"≥ {low}")
    if above is not None:
        parts.append(f"> {above}")
    if below is not None:
        parts.append(f"< {below}")
    # Upper limits of 10^9 and more only keep arithmetic in range.
    if high is not None and abs(high) < 10**9:
        parts.append(f"≤ {high:g}" if isinstance(high, float) else f"≤ {high}")
    return " ".join(parts)


def values(node):
    """What a key takes, in a few words."""
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    if "anyOf" in node:
        return " or ".join(values(branch) for branch in node["anyOf"])
    if "enum" in node:
        return ", ".join(f"`{json.dumps(word)}`" for word in node["enum"])
    if node.get("format") == "bytes":
        return "size"
    if node.get("format") == "rate":
        return "rate"
    kind = node["type"]
    if kind == "array":
        item = values(node["items"])
        count = f"{node['minItems']} × " if node["minItems"] == node["maxItems"] else "list of "
        return count + item
    if kind == "object" and isinstance(node.get("additionalProperties"), dict):
        return "name → " + values(node["additionalProperties"])
    return " ".join(filter(None, [kind, bounds(node)]))


def object_branch(node):
    for branch in node.get("anyOf", [node]):
        if branch.get("type") == "object" and "properties" in branch:
            return branch
    return None


def default(node, required):
    if "default" in node:
        return f"`{json.dumps(node['default'])}`"
    if "x-default" in node:
        return node["x-default"]
    return "required" if required else ""


def rows(node, path="", may_change=False):
    branch = object_branch(node)
    for key, child in branch["properties"].items():
        full = f"{path}.{key}" if path else key
        changes = may_change or "x-resume" in child
        inner = object_branch(child)
        if inner is None or "anyOf" in child:
            required = key in branch.get("required", branch.get("then", {}).get("required", []))
            if inner is not None:
                kind = "preset's name or object"
            else:
                kind = values(child)
            yield (f"`{full}`", kind, default(child, required), "yes" if changes else "", child["description"])
        if inner is not None:
            yield from rows(child, full, changes)


def table():
    schema = json.loads(SCHEMA.read_text())
    lines = ["| key | takes | default | may change on resume | meaning |", "| --- | --- | --- | --- | --- |"]
    for row in rows(schema):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def parts_of(path):
    """The text up to the first marker's line, between the markers, and from the second on."""
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{path}: expected one {BEGIN} and, after it, one {END}")
    begin = text.index(BEGIN) + len(BEGIN) + 1
    end = text.index(END)
    return text[:begin], text[begin:end], text[end:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", type=pathlib.Path, metavar="FILE")
    what.add_argument("--write", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.check:
        if parts_of(arguments.check)[1] != table():
            sys.exit(f"{arguments.check}: the table of keys differs from configs/schema.json; "
                     f"run scripts/config_reference.py --write {arguments.check}")
    elif arguments.write:
        before, _, after = parts_of(arguments.write)
        arguments.write.write_text(before + table() + after)
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()

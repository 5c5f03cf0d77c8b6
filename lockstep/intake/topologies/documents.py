"""JSON, YAML and XML of strangers as plain values: bounded, nothing expanded, one sentence where it is none."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeVar
from xml.parsers import expat

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from lockstep.errors import BadInput
from lockstep.intake.topologies.survey import Source

_MOST_DEPTH = 200  # nobody nests deeper; Python stops at 1,000 calls
_MOST_PARTS = 1 << 18  # elements of an XML file: a host has some hundred

Shape = TypeVar("Shape", bound=BaseModel)


@dataclass(slots=True)
class Part:
    """An element of XML: its name, its attributes and what is inside."""

    tag: str
    attributes: dict[str, str]
    parts: list["Part"] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        return self.attributes.get(name)


def read_json(source: Source) -> Any:  # Any: JSON of any shape
    """Return the value, or raise BadInput."""
    try:
        return from_json(source.text())
    except ValueError as error:
        raise BadInput(f"{source.name}: is not JSON: {str(error).splitlines()[0]}") from None


def read_yaml(source: Source) -> Any:  # Any: YAML of any shape, all scalars as text
    """Return the value with every scalar as it is written (0145 stays 0145), or raise BadInput."""
    try:
        return yaml.load(source.text(), Loader=_Words)  # noqa: S506 because this loader makes nothing but text
    except yaml.YAMLError as error:
        raise BadInput(f"{source.name}: is not YAML: {_yaml_words(error)}") from None
    except (RecursionError, ValueError, TypeError) as error:
        raise BadInput(f"{source.name}: is not YAML: {str(error).splitlines()[0]}") from None


def read_xml(source: Source) -> Part:
    """Return the outermost element, or raise BadInput; what declares entities is refused before they are read."""
    building = _Building(source.name)
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = building.refuse  # entities can be declared nowhere else
    parser.StartElementHandler = building.begin
    parser.EndElementHandler = building.end
    try:
        parser.Parse(source.data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise BadInput(f"{source.name}: is no XML: {error}") from None
    return building.open[0].parts[0]


def shaped(model: type[Shape], value: Any, source: Source) -> Shape:  # Any: as it was read
    """Return the value in this shape, or raise BadInput with everything that does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        first = [f"{'.'.join(map(str, problem['loc'])) or 'all of it'}: {problem['msg']}" for problem in problems[:5]]
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise BadInput(f"{source.name}: {'; '.join(first)}{more}") from None
    except RecursionError:
        raise BadInput(f"{source.name}: is nested too deeply") from None


class _Words(yaml.BaseLoader):
    """Makes text, lists and mappings, and refuses a key that is there twice: the last would win without a word."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Any, Any]:  # Any: as PyYAML has it
        keys = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
        for twice in (key for key, times in keys.items() if times > 1):
            raise yaml.constructor.ConstructorError(None, None, f"{twice} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


class _Building:
    """The elements that are open while a file is read, the outermost a frame around all."""

    def __init__(self, name: str) -> None:
        self.name, self.open, self.count = name, [Part("", {})], 0

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) > _MOST_DEPTH or self.count > _MOST_PARTS:
            raise BadInput(f"{self.name}: is nested too deeply or has more than {_MOST_PARTS:,} elements")
        part = Part(tag, attributes)
        self.open[-1].parts.append(part)
        self.open.append(part)

    def end(self, tag: str) -> None:
        self.open.pop()

    def refuse(self, *_: object) -> None:
        raise BadInput(f"{self.name}: declares a document type, which could make it grow without end")


def _yaml_words(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f" in line {mark.line + 1}" if mark else ""
    return f"{getattr(error, 'problem', None) or str(error).splitlines()[0]}{place}"

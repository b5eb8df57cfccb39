"""What the cases of clients_test.py share. A case is a function of a Server's address that raises where the client does not get what it asked for."""
import base64
import dataclasses
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]

MODEL = "nano"
KEY = "secret"
HELLO = "Hello! I am facet-nano. How can I help you?"
CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_time", "description": "Get the local time", "parameters": CITY}}
ASK_TIME = "What time is it in Paris?"  # answered by a call of TOOL, and with its result
SUM = "What is 12 + 30?"
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}


@dataclasses.dataclass
class Api:
    url: str

    @property
    def v1(self):
        return self.url + "/v1"


@dataclasses.dataclass
class Case:
    client: str  # a package of PyPI
    modules: tuple
    run: object

    @property
    def name(self):
        return f"{self.client}.{self.run.__name__}"


CASES = []


def case(client, *modules):
    """A case of a client, which needs these modules to be installed (default: the client's own)."""
    def add(f):
        CASES.append(Case(client, modules or (client.replace("-", "_"),), f))
        return f
    return add


PICTURE = ROOT / "tests" / "data" / "media" / "kinds" / "baseline-444.jpg"
PICTURE_URL = "data:image/jpeg;base64," + base64.b64encode(PICTURE.read_bytes()).decode()


def user(text):
    return [{"role": "user", "content": text}]


def is_time_call(name, arguments):
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert name == "get_time" and arguments == {"city": "Paris"}, (name, arguments)


def is_person(value):
    value = json.loads(value) if isinstance(value, str) else value
    assert set(value) == {"name", "age"} and len(value["name"]) <= 20 and 0 <= value["age"] <= 150, value


def person_model():
    import pydantic

    class Person(pydantic.BaseModel):
        """A person."""
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=150)
    return Person


def raises(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"expected {kind}")

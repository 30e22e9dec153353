"""Values with a meaning, for requests that are made from the API's description.

The description says what a value looks like. Which devices there are, and who may own a volume, it cannot say: of requests
that are made from it alone hardly one in a hundred makes a volume, and what can be done with volumes is never done.
What is made to be refused is left as it is.
"""

import os

import schemathesis
from schemathesis import GenerationMode

# What a field is instead; None is to leave it out.
MEANT = {"device": os.environ["FARFLASH_DEVICE"], "core": 0, "on": None, "owner": "tenant"}
# One in so many requests keeps what was made for such fields, and one in so many asks for a name that is taken.
KEPT_IN, TAKEN_IN = 8, 16


@schemathesis.hook
def map_case(context, case):
    """Gives what was made to be accepted a chance of it. A run is a function of its seed, and so is this."""
    is_meant = case.meta is None or case.meta.generation.mode == GenerationMode.POSITIVE
    if not is_meant or not isinstance(case.body, dict):
        return case
    chance = sum(repr(case.body).encode())
    if case.operation.label == "POST /v1/volumes" and chance % KEPT_IN != 0:
        body = {field: MEANT.get(field, value) for field, value in case.body.items()}
        case.body = {field: value for field, value in body.items() if value is not None}
        if chance % TAKEN_IN == 1:
            case.body["name"] = "db-tenant"
    # Two changes are two requests.
    if case.operation.label == "PATCH /v1/volumes/{volume}":
        changes = sorted(item for item in case.body.items() if item[0] in ("size_bytes", "slo"))
        if len(changes) > 1:
            case.body = dict([changes[chance % 2]])
    return case

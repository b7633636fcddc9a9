#!/usr/bin/env bash
# pydantic 2.14.3: the JSON schema of a Decimal field allows any text, which validation refuses.
#
# Guess: what the schema allows for a Decimal is at least shaped like a number, and its digits and bounds are there.
# What happens: the schema is {"anyOf": [{"type": "number", ...}, {"type": "string"}]}: "hello" is valid by it and is
#   refused by the model. Bounds stand beside the number alone; max_digits and decimal_places nowhere.
# Exits with 1 when this changes.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pydantic==2.14.3 jsonschema==4.26.0

cat > "$folder/show.py" <<'PYTHON'
from decimal import Decimal
from typing import Annotated

import jsonschema
from pydantic import BaseModel, Field, ValidationError


class Price(BaseModel):
    amount: Annotated[Decimal, Field(gt=0, max_digits=5, decimal_places=2)]


schema = Price.model_json_schema()
print(schema["properties"]["amount"])
found = []
for amount in ("hello", "-1", "1234567.891"):
    fits = jsonschema.Draft202012Validator(schema).is_valid({"amount": amount})
    try:
        Price(amount=amount)
        taken = True
    except ValidationError:
        taken = False
    found.append((fits, taken))
    print(f"{amount!r}: valid by the schema: {fits}, taken by the model: {taken}")
raise SystemExit(found != [(True, False)] * 3)
PYTHON
"$folder/venv/bin/python" "$folder/show.py"

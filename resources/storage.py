"""Options of storages for all Flink jobs, such as those of S3, for `state_pipelines/storage/resolution.py`.

Those of one job are in the field `storage_options` of its YAML. Secrets are written as `${NAME}`, by variables.
"""

from __future__ import annotations

import os

from state_pipelines.storage.resolution import VARIABLE, load_storage_options, share_storage_options

# Options by root, or the name of a file that has them. A mistake is an error of the code location, not of each run.
share_storage_options(load_storage_options(os.environ.get(VARIABLE) or "{}"))

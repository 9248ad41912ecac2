from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.spark.session import create_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = create_session("tests", cores=2, memory="1g")
    yield session
    session.stop()

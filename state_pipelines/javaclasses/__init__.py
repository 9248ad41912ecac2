"""Java classes: read from jars, directories and class files, or declared in field lists; none of their code runs."""

from __future__ import annotations

from state_pipelines.javaclasses.classpath import ClassPath, open_class_path
from state_pipelines.javaclasses.field_lists import list_fields, load_field_lists
from state_pipelines.javaclasses.javaclass import JavaClass

__all__ = ["ClassPath", "JavaClass", "list_fields", "load_field_lists", "open_class_path"]

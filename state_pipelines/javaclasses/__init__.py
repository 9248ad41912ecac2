"""Java classes: read from jars, directories and class files, or declared in field lists; none of their code runs."""

from __future__ import annotations

from state_pipelines.javaclasses.classfile import JavaClass
from state_pipelines.javaclasses.classpath import ClassPath, list_fields, load_field_lists, open_class_path

__all__ = ["ClassPath", "JavaClass", "list_fields", "load_field_lists", "open_class_path"]

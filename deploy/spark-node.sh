#!/bin/sh
# Start a node of a Spark standalone cluster in the foreground, out of the jars of PySpark.
#   spark-node master HOST PORT
#   spark-node worker MASTER_URL
# Needs Java 17 or newer in JAVA_HOME or on the PATH. Variables of Spark: SPARK_WORKER_CORES, SPARK_WORKER_MEMORY,
# SPARK_DAEMON_MEMORY, SPARK_MASTER_WEBUI_PORT.
set -eu
export SPARK_HOME="${SPARK_HOME:-$(python -c 'import pyspark, pathlib; print(pathlib.Path(pyspark.__file__).parent)')}"
case "$1" in
    master) exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master --host "$2" --port "$3" ;;
    worker) exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker "$2" ;;
    *) echo "usage: spark-node master HOST PORT | spark-node worker MASTER_URL" >&2; exit 2 ;;
esac

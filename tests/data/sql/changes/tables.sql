CREATE TABLE o (oid BIGINT, cid BIGINT, amount BIGINT, total BIGINT, qty INT, price DECIMAL(10, 2), score DOUBLE, note VARCHAR(20), title VARCHAR(20), need BIGINT NOT NULL, p AS PROCTIME(), ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'datagen', 'rows-per-second' = '1');
CREATE TABLE k (oid BIGINT, cid BIGINT, amount BIGINT, total BIGINT, note VARCHAR(20), PRIMARY KEY (oid) NOT ENFORCED) WITH ('connector' = 'datagen', 'rows-per-second' = '1');
CREATE TABLE c (cid BIGINT, name STRING, city STRING, PRIMARY KEY (cid) NOT ENFORCED) WITH ('connector' = 'datagen', 'rows-per-second' = '1');
CREATE TABLE t1 (cid BIGINT, a BIGINT) WITH ('connector' = 'blackhole');
CREATE TABLE t2 (cid BIGINT, a BIGINT, b BIGINT) WITH ('connector' = 'blackhole');
CREATE TABLE t3 (cid BIGINT, a BIGINT, b BIGINT, c BIGINT) WITH ('connector' = 'blackhole');
CREATE TABLE s2 (cid BIGINT, a STRING) WITH ('connector' = 'blackhole');
CREATE TABLE s3 (cid BIGINT, a STRING, b STRING) WITH ('connector' = 'blackhole');
CREATE TABLE u2 (cid BIGINT, a BIGINT, b BIGINT, PRIMARY KEY (a) NOT ENFORCED) WITH ('connector' = 'blackhole');

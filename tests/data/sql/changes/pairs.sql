-- Tables of pairs of queries that people write, and the pairs: name, old query, new query.
CREATE TABLE orders (id BIGINT, customer BIGINT, seller BIGINT, grp INT, status STRING, qty INT, amount BIGINT, shipping BIGINT, price DOUBLE, fee DECIMAL(10,2), note VARCHAR(20), tags ARRAY<STRING>, attrs MAP<STRING,STRING>, addr ROW<city STRING, zip INT>, payload BYTES, dd DATE, lts TIMESTAMP_LTZ(3), ts TIMESTAMP(3), proc AS PROCTIME(), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH ('connector'='datagen');
CREATE TABLE customers (id BIGINT, name STRING, region STRING, credit BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector'='datagen');
CREATE TABLE events (id BIGINT, parent BIGINT, k BIGINT, kind STRING, x BIGINT, y BIGINT, ts TIMESTAMP(3), proc AS PROCTIME(), WATERMARK FOR ts AS ts) WITH ('connector'='datagen');
CREATE TABLE s2 (k BIGINT, a BIGINT) WITH ('connector'='blackhole');
CREATE TABLE t2 (k BIGINT, a BIGINT) WITH ('connector'='blackhole');
CREATE TABLE s3 (k BIGINT, a BIGINT, b BIGINT) WITH ('connector'='blackhole');
CREATE TABLE s4 (k BIGINT, a BIGINT, b BIGINT, c BIGINT) WITH ('connector'='blackhole');
CREATE TABLE x2 (k STRING, a BIGINT) WITH ('connector'='blackhole');
CREATE TABLE x3 (k STRING, a BIGINT, b BIGINT) WITH ('connector'='blackhole');
CREATE TABLE d3 (k BIGINT, a STRING, b STRING) WITH ('connector'='blackhole');
CREATE TABLE f2 (k BIGINT, a DOUBLE) WITH ('connector'='blackhole');
CREATE TABLE p2 (k BIGINT, a BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole');
CREATE TABLE r3 (k BIGINT, a STRING, b BIGINT) WITH ('connector'='blackhole');
CREATE TABLE r4 (k BIGINT, a STRING, b BIGINT, n BIGINT) WITH ('connector'='blackhole');
CREATE TABLE w3 (k BIGINT, ws TIMESTAMP(3), a BIGINT, b BIGINT) WITH ('connector'='blackhole');

-- in-ints
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE qty IN (1,2,3) GROUP BY customer;
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE qty IN (4,5,6) GROUP BY customer;

-- not-in-strings
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE status NOT IN ('a','b','c') GROUP BY customer;
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE status NOT IN ('a','b','c','d') GROUP BY customer;

-- between
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE qty BETWEEN 1 AND 5 GROUP BY customer;
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE qty BETWEEN 1 AND 9 GROUP BY customer;

-- date-between
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE dd BETWEEN DATE '2024-01-01' AND DATE '2024-12-31' GROUP BY customer;
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE dd BETWEEN DATE '2025-01-01' AND DATE '2025-12-31' GROUP BY customer;

-- case-in
INSERT INTO s2 SELECT customer, SUM(CASE WHEN qty IN (1,2,3) THEN amount ELSE 0 END) FROM orders GROUP BY customer;
INSERT INTO s2 SELECT customer, SUM(CASE WHEN qty IN (7,8,9) THEN amount ELSE 0 END) FROM orders GROUP BY customer;

-- filter-in-swap
INSERT INTO s3 SELECT customer, COUNT(*) FILTER (WHERE qty IN (1,2,3)), COUNT(*) FILTER (WHERE qty IN (4,5,6)) FROM orders GROUP BY customer;
INSERT INTO s3 SELECT customer, COUNT(*) FILTER (WHERE qty IN (4,5,6)), COUNT(*) FILTER (WHERE qty IN (1,2,3)) FROM orders GROUP BY customer;

-- distinct-filter-in
INSERT INTO s3 SELECT customer, COUNT(DISTINCT note) FILTER (WHERE qty IN (1,2,3)), COUNT(DISTINCT note) FILTER (WHERE qty IN (4,5,6)) FROM orders GROUP BY customer;
INSERT INTO s3 SELECT customer, COUNT(DISTINCT note) FILTER (WHERE qty IN (4,5,6)), COUNT(DISTINCT note) FILTER (WHERE qty IN (1,2,3)) FROM orders GROUP BY customer;

-- selfjoin-filters-exchanged
INSERT INTO s3 SELECT a.k, a.x, b.x FROM events a JOIN events b ON a.k=b.k WHERE a.kind='open' AND b.kind='close';
INSERT INTO s3 SELECT a.k, a.x, b.x FROM events b JOIN events a ON a.k=b.k WHERE a.kind='open' AND b.kind='close';

-- selfjoin-filter-moved
INSERT INTO s3 SELECT a.k, a.x, b.x FROM events a JOIN events b ON a.id=b.id WHERE a.kind='open';
INSERT INTO s3 SELECT a.k, a.x, b.x FROM events a JOIN events b ON a.id=b.id WHERE b.kind='open';

-- three-selfjoin-all
INSERT INTO s4 SELECT a.k, SUM(a.x), SUM(b.x), SUM(c.x) FROM events a JOIN events b ON a.parent=b.id JOIN events c ON b.parent=c.id GROUP BY a.k;
INSERT INTO s4 SELECT a.k, SUM(a.x), SUM(c.x), SUM(b.x) FROM events a JOIN events b ON a.parent=b.id JOIN events c ON b.parent=c.id GROUP BY a.k;

-- three-selfjoin-swap
INSERT INTO s3 SELECT a.k, SUM(b.x), SUM(c.x) FROM events a JOIN events b ON a.parent=b.id JOIN events c ON b.parent=c.id GROUP BY a.k;
INSERT INTO s3 SELECT a.k, SUM(c.x), SUM(b.x) FROM events a JOIN events b ON a.parent=b.id JOIN events c ON b.parent=c.id GROUP BY a.k;

-- dims-twice-reordered
INSERT INTO s3 SELECT o.grp, SUM(b.credit), SUM(s.credit) FROM orders o JOIN customers b ON o.customer=b.id JOIN customers s ON o.seller=s.id GROUP BY o.grp;
INSERT INTO s3 SELECT o.grp, SUM(b.credit), SUM(s.credit) FROM orders o JOIN customers s ON o.seller=s.id JOIN customers b ON o.customer=b.id GROUP BY o.grp;

-- semi-then-self
INSERT INTO s2 SELECT a.k, SUM(b.x) FROM events a JOIN events b ON a.parent=b.id WHERE a.k IN (SELECT k FROM events WHERE kind='z') GROUP BY a.k;
INSERT INTO s2 SELECT a.k, SUM(b.x) FROM events a JOIN events b ON a.parent=b.id GROUP BY a.k;

-- selfjoin-pk-add
INSERT INTO x2 SELECT a.name, SUM(b.credit) FROM customers a JOIN customers b ON a.id=b.id GROUP BY a.name;
INSERT INTO x3 SELECT a.name, SUM(b.credit), SUM(a.credit) FROM customers a JOIN customers b ON a.id=b.id GROUP BY a.name;

-- agg-join-one-table-swap
INSERT INTO s3 SELECT a.customer, a.s, b.t FROM (SELECT customer, SUM(amount) s FROM orders WHERE status='a' GROUP BY customer) a JOIN (SELECT customer, SUM(amount) t FROM orders WHERE status='b' GROUP BY customer) b ON a.customer=b.customer;
INSERT INTO s3 SELECT a.customer, a.s, b.t FROM (SELECT customer, SUM(amount) t FROM orders WHERE status='b' GROUP BY customer) b JOIN (SELECT customer, SUM(amount) s FROM orders WHERE status='a' GROUP BY customer) a ON a.customer=b.customer;

-- lossy-cast
INSERT INTO f2 SELECT customer, SUM(CAST(price AS INT)) FROM orders GROUP BY customer;
INSERT INTO f2 SELECT customer, SUM(price) FROM orders GROUP BY customer;

-- lossy-cast-max
INSERT INTO f2 SELECT customer, MAX(CAST(fee AS INT)) FROM orders GROUP BY customer;
INSERT INTO f2 SELECT customer, MAX(fee) FROM orders GROUP BY customer;

-- lossy-cast-row
INSERT INTO d3 SELECT customer, status, n FROM (SELECT customer, status, CAST(note AS VARCHAR(3)) AS n, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY ts DESC) rn FROM orders) WHERE rn=1;
INSERT INTO d3 SELECT customer, status, n FROM (SELECT customer, status, CAST(note AS VARCHAR(10)) AS n, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY ts DESC) rn FROM orders) WHERE rn=1;

-- sets-exchanged
EXECUTE STATEMENT SET BEGIN INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE status='a' GROUP BY customer; INSERT INTO t2 SELECT customer, SUM(amount) FROM orders WHERE status='b' GROUP BY customer; END;
EXECUTE STATEMENT SET BEGIN INSERT INTO t2 SELECT customer, SUM(amount) FROM orders WHERE status='b' GROUP BY customer; INSERT INTO s2 SELECT customer, SUM(amount) FROM orders WHERE status='a' GROUP BY customer; END;

-- source-exchanged
EXECUTE STATEMENT SET BEGIN INSERT INTO s2 SELECT k, x FROM events; INSERT INTO t2 SELECT customer, amount FROM orders; END;
EXECUTE STATEMENT SET BEGIN INSERT INTO t2 SELECT customer, amount FROM orders; INSERT INTO s2 SELECT k, x FROM events; END;

-- union-weights
INSERT INTO s2 SELECT k, SUM(w) FROM (SELECT k, x AS w FROM events WHERE kind='buy' UNION ALL SELECT k, y AS w FROM events WHERE kind='sell') GROUP BY k;
INSERT INTO s2 SELECT k, SUM(w) FROM (SELECT k, x AS w FROM events WHERE kind='sell' UNION ALL SELECT k, y AS w FROM events WHERE kind='buy') GROUP BY k;

-- union-weights-const
INSERT INTO s2 SELECT k, SUM(w) FROM (SELECT k, 1 AS w FROM events WHERE kind='buy' UNION ALL SELECT k, -1 AS w FROM events WHERE kind='sell') GROUP BY k;
INSERT INTO s2 SELECT k, SUM(w) FROM (SELECT k, 1 AS w FROM events WHERE kind='sell' UNION ALL SELECT k, -1 AS w FROM events WHERE kind='buy') GROUP BY k;

-- union-reordered
INSERT INTO s2 SELECT k, SUM(w) FROM (SELECT k, x AS w FROM events UNION ALL SELECT customer, amount FROM orders) GROUP BY k;
INSERT INTO s2 SELECT k, SUM(w) FROM (SELECT customer AS k, amount AS w FROM orders UNION ALL SELECT k, x FROM events) GROUP BY k;

-- key-order
INSERT INTO s3 SELECT customer, seller, SUM(amount) FROM orders GROUP BY customer, seller;
INSERT INTO s3 SELECT customer, seller, SUM(amount) FROM orders GROUP BY seller, customer;

-- semi-constant
INSERT INTO s2 SELECT o.customer, o.amount FROM orders o WHERE o.customer IN (SELECT id FROM customers WHERE region IN ('a','b'));
INSERT INTO s2 SELECT o.customer, o.amount FROM orders o WHERE o.customer IN (SELECT id FROM customers WHERE region IN ('c','d'));

-- not-distinct-from
INSERT INTO s2 SELECT o.amount, e.x FROM orders o JOIN events e ON o.customer=e.k;
INSERT INTO s2 SELECT o.amount, e.x FROM orders o JOIN events e ON o.customer IS NOT DISTINCT FROM e.k;

-- two-level-add
INSERT INTO s2 SELECT grp, SUM(m) FROM (SELECT grp, customer, MAX(amount) m FROM orders GROUP BY grp, customer) GROUP BY grp;
INSERT INTO s3 SELECT grp, SUM(m), SUM(n) FROM (SELECT grp, customer, MAX(amount) m, MAX(shipping) n FROM orders GROUP BY grp, customer) GROUP BY grp;

-- cte-view-alias
INSERT INTO s2 SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
CREATE VIEW v AS SELECT customer AS c, amount AS m FROM orders; INSERT INTO s2 WITH z AS (SELECT c AS cc, m FROM v /* why */) SELECT cc, SUM(m) AS s FROM z GROUP BY cc;

-- minibatch-twophase-swap
INSERT INTO s3 SELECT customer, SUM(amount), SUM(shipping) FROM orders GROUP BY customer;
SET 'table.exec.mini-batch.enabled'='true'; SET 'table.exec.mini-batch.allow-latency'='1 s'; SET 'table.exec.mini-batch.size'='100'; SET 'table.optimizer.agg-phase-strategy'='TWO_PHASE'; INSERT INTO s3 SELECT customer, SUM(shipping), SUM(amount) FROM orders GROUP BY customer;

-- ttl-hint-exchanged
INSERT INTO s2 SELECT /*+ STATE_TTL('o'='1d','e'='2d') */ o.amount, e.x FROM orders o JOIN events e ON o.customer=e.k;
INSERT INTO s2 SELECT /*+ STATE_TTL('e'='2d','o'='1d') */ o.amount, e.x FROM events e JOIN orders o ON o.customer=e.k;

-- selfjoin-agg-exchanged
INSERT INTO s3 SELECT a.k, SUM(a.x), SUM(b.x) FROM events a JOIN events b ON a.k=b.k WHERE a.kind='open' AND b.kind='close' GROUP BY a.k;
INSERT INTO s3 SELECT a.k, SUM(a.x), SUM(b.x) FROM events b JOIN events a ON a.k=b.k WHERE a.kind='open' AND b.kind='close' GROUP BY a.k;

-- rollup-swap
INSERT INTO s4 SELECT customer, seller, SUM(amount), SUM(shipping) FROM orders GROUP BY ROLLUP(customer, seller);
INSERT INTO s4 SELECT customer, seller, SUM(shipping), SUM(amount) FROM orders GROUP BY ROLLUP(customer, seller);

-- rollup-add
INSERT INTO s3 SELECT customer, seller, SUM(amount) FROM orders GROUP BY ROLLUP(customer, seller);
INSERT INTO s4 SELECT customer, seller, SUM(amount), SUM(shipping) FROM orders GROUP BY ROLLUP(customer, seller);

-- grouping-sets
INSERT INTO s3 SELECT customer, seller, SUM(amount) FROM orders GROUP BY GROUPING SETS((customer),(seller));
INSERT INTO s3 SELECT customer, seller, SUM(amount) FROM orders GROUP BY GROUPING SETS((customer),(seller),());

-- unnest-add
INSERT INTO x2 SELECT tag, COUNT(*) FROM orders CROSS JOIN UNNEST(tags) AS t(tag) GROUP BY tag;
INSERT INTO x3 SELECT tag, COUNT(*), SUM(amount) FROM orders CROSS JOIN UNNEST(tags) AS t(tag) GROUP BY tag;

-- having
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders GROUP BY customer HAVING COUNT(*) > 3;
INSERT INTO s2 SELECT customer, SUM(amount) FROM orders GROUP BY customer HAVING COUNT(*) > 5;

-- interval-bounds
INSERT INTO s2 SELECT o.amount, e.x FROM orders o, events e WHERE o.customer=e.k AND o.ts BETWEEN e.ts AND e.ts + INTERVAL '1' HOUR;
INSERT INTO s2 SELECT o.amount, e.x FROM orders o, events e WHERE o.customer=e.k AND o.ts BETWEEN e.ts AND e.ts + INTERVAL '2' HOUR;

-- left-on-to-where
INSERT INTO s2 SELECT o.amount, e.x FROM orders o LEFT JOIN events e ON o.customer=e.k AND o.qty>5;
INSERT INTO s2 SELECT o.amount, e.x FROM orders o LEFT JOIN events e ON o.customer=e.k WHERE o.qty>5;

-- sum-distinct
INSERT INTO s3 SELECT customer, COUNT(DISTINCT amount), COUNT(DISTINCT shipping) FROM orders GROUP BY customer;
INSERT INTO s4 SELECT customer, COUNT(DISTINCT shipping), COUNT(DISTINCT amount), SUM(DISTINCT amount) FROM orders GROUP BY customer;

-- global-agg
INSERT INTO s2 SELECT SUM(amount), SUM(shipping) FROM orders;
INSERT INTO s2 SELECT SUM(shipping), SUM(amount) FROM orders;

-- filter-agg
INSERT INTO s3 SELECT customer, SUM(amount) FILTER (WHERE status='a'), SUM(amount) FILTER (WHERE status='b') FROM orders GROUP BY customer;
INSERT INTO s3 SELECT customer, SUM(amount) FILTER (WHERE status='b'), SUM(amount) FILTER (WHERE status='c') FROM orders GROUP BY customer;

-- top-unnumbered
INSERT INTO r4 SELECT customer, status, amount, rn FROM (SELECT customer, status, amount, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY amount) rn FROM orders) WHERE rn<=3;
INSERT INTO r3 SELECT customer, status, amount FROM (SELECT customer, status, amount, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY amount) rn FROM orders) WHERE rn<=3;

-- top-numbered
INSERT INTO r3 SELECT customer, status, amount FROM (SELECT customer, status, amount, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY amount) rn FROM orders) WHERE rn<=3;
INSERT INTO r4 SELECT customer, status, amount, rn FROM (SELECT customer, status, amount, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY amount) rn FROM orders) WHERE rn<=3;

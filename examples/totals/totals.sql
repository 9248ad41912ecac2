CREATE TABLE orders (
  customer BIGINT,
  amount BIGINT,
  shipping BIGINT
) WITH (
  'connector' = 'datagen',
  'rows-per-second' = '100',
  'fields.customer.min' = '1',
  'fields.customer.max' = '20',
  'fields.amount.min' = '1',
  'fields.amount.max' = '1000',
  'fields.shipping.min' = '1',
  'fields.shipping.max' = '9'
);
CREATE TABLE totals (
  customer BIGINT,
  amount BIGINT,
  shipping BIGINT,
  PRIMARY KEY (customer) NOT ENFORCED
) WITH ('connector' = 'blackhole');

INSERT INTO totals
SELECT customer, SUM(amount), SUM(shipping) FROM orders GROUP BY customer;

package com.acme.orders;

import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** The input of the job: the same events on every run. */
final class OrderEvents {
    static final int ORDERS = 200;
    static final int SPLITS = 2;
    private static final long SEED = 2026;
    private static final Instant START = Instant.parse("2026-01-01T00:00:00Z");
    private static final String[] CUSTOMERS = {"ada", "Zoë", "李雷", "smile 😀", "o'neil, jr.", "", "Ωmega"};
    private static final String[] CITIES = {"Berlin", "Århus", "東京", "", "San José"};
    private static final String[] NOTES = {null, "", "leave at the door", "Bitte klingeln: Müller", "🎁 gift"};

    private OrderEvents() {}

    /** All events of an order are in one split, in order. */
    static List<List<OrderEvent>> splits() {
        List<List<OrderEvent>> splits = new ArrayList<>();
        for (int split = 0; split < SPLITS; split++) {
            splits.add(new ArrayList<>());
        }
        Random random = new Random(SEED);
        for (int number = 0; number < ORDERS; number++) {
            List<OrderEvent> split = splits.get(number % SPLITS);
            int changes = 1 + random.nextInt(3);
            for (int change = 0; change < changes; change++) {
                split.add(event(number, change, random));
            }
        }
        return splits;
    }

    private static OrderEvent event(int number, int change, Random random) {
        OrderEvent event = new OrderEvent();
        event.orderId = orderId(number);
        event.customer = CUSTOMERS[number % CUSTOMERS.length];
        event.article = Prices.article(random.nextInt(Prices.ARTICLES));
        event.quantity = random.nextInt(25) - 2; // a negative quantity is a return
        event.cents = number == 0 ? 9_007_199_254_740_991L : event.quantity * (99L + random.nextInt(10_000));
        event.note = NOTES[random.nextInt(NOTES.length)];
        event.at = START.plusSeconds(number * 2L + change).plusNanos(random.nextInt(1_000_000_000));
        event.address = random.nextInt(5) == 0 ? null : address(number, random);
        event.status = OrderStatus.values()[Math.min(change + random.nextInt(2), OrderStatus.values().length - 1)];
        return event;
    }

    static String orderId(int number) {
        return String.format(number % 10 == 7 ? "Bestellung-Ü%04d" : "order-%04d", number);
    }

    private static Address address(int number, Random random) {
        String zip = random.nextInt(4) == 0 ? null : String.format("%05d", random.nextInt(100_000));
        return new Address("Main Street " + number, CITIES[random.nextInt(CITIES.length)], zip);
    }
}

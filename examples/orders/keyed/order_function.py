"""`OrderFunction` of the orders job in Python, for the state that the Java class keeps."""

from __future__ import annotations

from typing import Any

from state_pipelines.datastream import (
    Instant,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)

PAYMENT_TERM = 30 * 86_400_000
ARCHIVE = 4_922_899_200_000
"""2126-01-01, in milliseconds."""

ORDER = """Pojo<com.acme.orders.Order>(
    address: Pojo<com.acme.orders.Address>(city: String, street: String, zip: String), amount: Long, customer: String,
    id: String, note: String, quantity: Int,
    status: Enum<com.acme.orders.OrderStatus>(NEW, PAID, SHIPPED, CANCELLED), updatedAt: Instant)"""


class OrderFunction(KeyedProcessFunction):
    """Keeps every order, its history and its reminders."""

    def open(self, runtime_context: Any) -> None:
        """Declare the states by the names and types that they have in the Java class."""
        self.order = runtime_context.get_state(ValueStateDescriptor("order", Types.of(ORDER)))
        self.history = runtime_context.get_list_state(ListStateDescriptor("history", Types.STRING()))
        self.quantities = runtime_context.get_map_state(MapStateDescriptor("quantities", Types.STRING(), Types.LONG()))
        seen = ValueStateDescriptor("last-seen", Types.INSTANT())
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.days(36_500)).build())
        self.last_seen = runtime_context.get_state(seen)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        """Take over a change of an order."""
        timers = ctx.timer_service()
        at = Instant(value.at["epoch_second"], value.at["nano"])
        before = self.order.value()
        if before is not None:
            timers.delete_event_time_timer(before["updatedAt"].to_epoch_milli() + PAYMENT_TERM)
        if value.status in ("NEW", "CANCELLED"):
            timers.register_event_time_timer(at.to_epoch_milli() + PAYMENT_TERM)
        timers.register_processing_time_timer(ARCHIVE + len(value.order_id) * 1_000)
        self.order.update(
            Row(
                address=value.address and Row(**value.address),
                amount=value.cents,
                customer=value.customer,
                id=value.order_id,
                note=value.note,
                quantity=value.quantity,
                status=value.status,
                updatedAt=at,
            )
        )
        self.history.add(f"{value.status} {value.article}, {value.customer}")
        self.quantities.put(value.article, (self.quantities.get(value.article) or 0) + value.quantity)
        self.last_seen.update(at)

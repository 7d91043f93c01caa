"""A report that loads the items of each order anew when it asks for them (N+1 statements), with
SQLAlchemy; the twin loads them with the orders, and then most of its time makes objects of rows.

As in SQLAlchemy's own documentation of lazy loading, "the N plus one problem"."""

from __future__ import annotations

RULE, CAUSE, TWIN = "costly_calls", "One SQL statement after the other", True
ALSO = ("gc_pauses",)
NEEDS = "sqlalchemy"

if __name__ == "__main__":
    from loop import FIXED, until_over
    from sqlalchemy import ForeignKey, create_engine, select
    from sqlalchemy.orm import (
        DeclarativeBase,
        Mapped,
        Session,
        mapped_column,
        relationship,
        selectinload,
    )
    from sqlalchemy.pool import StaticPool

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        items: Mapped[list[Item]] = relationship()

    class Item(Base):
        __tablename__ = "items"
        id: Mapped[int] = mapped_column(primary_key=True)
        order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), index=True)
        price: Mapped[int]

    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all(Order(items=[Item(price=at) for at in range(4)]) for _ in range(400))
        session.commit()

    def add_up(order: Order) -> int:
        return sum(item.price for item in order.items)

    for _ in until_over():
        with Session(engine) as session:
            asked = select(Order).options(selectinload(Order.items)) if FIXED else select(Order)
            sum(add_up(order) for order in session.scalars(asked))

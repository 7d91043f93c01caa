"""Each order looks for its product with a path through the whole document.

As in the questions on Stack Overflow why find() of ElementTree is slow: it goes through the tree."""

from __future__ import annotations

RULE, CAUSE = "places", "dictionary by the id"
LINE = "find_product"
TWIN = True

if __name__ == "__main__":
    from xml.etree import ElementTree

    from loop import FIXED, burn, until_over

    class Catalog:
        def __init__(self, size: int) -> None:
            self.root = ElementTree.Element("catalog")
            for at in range(size):
                ElementTree.SubElement(self.root, "product", id=f"p{at}", price=str(at))
            self.by_id = {product.get("id"): product for product in self.root}

        def find_product(self, wanted: str) -> ElementTree.Element:
            if FIXED:
                return self.by_id[wanted]
            return self.root.find(f".//product[@id='{wanted}']")

    def add_up(catalog: Catalog, orders: range) -> int:
        burn(0.002)
        return sum(int(catalog.find_product(f"p{37 * at % 4000}").get("price")) for at in orders)

    catalog = Catalog(4000)
    for step in until_over():
        add_up(catalog, range(20 * step, 20 * step + 20))

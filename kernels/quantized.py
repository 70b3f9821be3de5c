"""8- and 4-bit weights: the matrices, products with few rows, and their values."""

from .quantized_format import FORMATS, QuantizedFormat, QuantizedMatrix
from .quantized_product import ROW_TILE, ProductWorkspace, quantized_product
from .quantized_values import dequantize, gather_rows

__all__ = [
    "FORMATS",
    "ROW_TILE",
    "ProductWorkspace",
    "QuantizedFormat",
    "QuantizedMatrix",
    "dequantize",
    "gather_rows",
    "quantized_product",
]

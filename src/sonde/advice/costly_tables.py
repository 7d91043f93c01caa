"""Costly calls of libraries for tables, arrays, sparse matrices, graphs and formulas."""

from __future__ import annotations

from sonde.advice.costly_calls import SHORT, WORKING, CostlyCall
from sonde.advice.costly_standard import name_frames


def name_numpy(modules: str, functions: str) -> tuple[str, ...]:
    """Return frames of functions of numpy, whose files had other names before numpy 2."""
    return tuple(
        frame for module in modules.split() for frame in name_frames(f"/numpy/{module}", functions)
    )


_BASE = "/numpy/lib/function_base.py:", "/numpy/lib/_function_base_impl.py:"
_FUNCTIONS = "torch._C._VariableFunctionsClass"

TABLES = (
    CostlyCall(
        "frames_small", "Small data frames or series are made again and again",
        "keep single rows as dictionaries or tuples, collect them in a list, and make one frame of "
        "all of them at the end",
        (*name_frames("/pandas/core/frame.py", "__init__ from_dict from_records"),
         "/pandas/core/series.py:__init__", "/pandas/core/internals/construction.py:"), (), 25,
        stretch=SHORT,
    ),
    CostlyCall(
        "columns_added", "Columns are added to a data frame one after the other",
        "collect them in a dictionary and add all at once (`pandas.concat([frame, DataFrame(new)], "
        "axis=1)`, assign): each one may copy what is there",
        (*name_frames("/pandas/core/frame.py", "insert _set_item __setitem__ _set_item_mgr"),), (),
        25, stretch=SHORT,
    ),
    CostlyCall(
        "series_elements", "Elements of a Series are asked for one by one",
        "turn it into a list or an array first (`tolist()`, to_numpy()), a dictionary for look-ups "
        "(to_dict()), or work on the whole column",
        name_frames("/pandas/core/series.py", "__getitem__ __setitem__ _get_value _set_value "
                    "__iter__ item get"), (), 20, stretch=SHORT,
    ),
    CostlyCall(
        "frame_sorted", "A table is sorted again and again",
        "sort once, after all changes; for the first few, nlargest and nsmallest; for the last of "
        "each group, groupby with max, last or idxmax",
        (*name_frames("/pandas/core/frame.py", "sort_values sort_index nlargest"),
         *name_frames("/pandas/core/series.py", "sort_values sort_index argsort"),
         *name_frames("/polars/dataframe/frame.py", "sort")), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "frames_joined", "Tables are joined again and again",
        "join once for all keys (merge of the whole tables), set_index before many joins, or look "
        "single rows up in a dictionary", ("/pandas/core/reshape/merge.py:",), (), 25,
        stretch=SHORT,
    ),
    CostlyCall(
        "groups_again", "A table is grouped or pivoted again and again",
        "group once for all keys, with several results at a time (agg), and keep the result",
        ("/pandas/core/groupby/groupby.py:", "/pandas/core/groupby/generic.py:",
         "/pandas/core/groupby/ops.py:", "/pandas/core/groupby/grouper.py:",
         "/pandas/core/reshape/pivot.py:", "/pandas/core/algorithms.py:value_counts",
         "/pandas/core/frame.py:groupby", "/pandas/core/series.py:groupby"), (), 30,
        stretch=SHORT,
    ),
    CostlyCall(
        "frame_copied", "Data frames are copied for small changes, again and again",
        "change all at once: drop many columns or rows with one call, filter before grouping, and "
        "take out of the loop what does not depend on it",
        (*name_frames("/pandas/core/frame.py",
         "drop drop_duplicates duplicated reset_index set_index "
                      "rename assign dropna reindex explode transpose T"),
         *name_frames("/pandas/core/generic.py", "copy drop reindex fillna astype replace")), (),
        30, stretch=SHORT,
    ),
    CostlyCall(
        "text_columns", "Text functions of columns (`.str`) go through the values one by one",
        "do it once for each different text (`astype('category')`, map of a dictionary), or keep "
        "the column as `string[pyarrow]`, whose functions are in C",
        ("/pandas/core/strings/",), (), 30,
    ),
    CostlyCall(
        "dates_singly", "Dates are parsed by pandas one by one, or without a format",
        "parse a whole column with one call and `format=…` (or `format='ISO8601'`)",
        ("/pandas/core/tools/datetimes.py:",), ("pandas._libs.tslibs.timestamps.Timestamp",
                                                "pandas._libs.tslibs.parsing.parse_datetime_string"),
        25, stretch=SHORT,
    ),
    CostlyCall(
        "windows_in_python",
        "A function in Python is called for each window or each value of a table",
        "use the functions that are built in (rolling().mean, sum, max, quantile), "
        "`raw=True` or `engine='numba'`, and map of a dictionary",
        (*name_frames("/pandas/core/window/rolling.py", "apply"),
         *name_frames("/pandas/core/frame.py", "applymap map"),
         *name_frames("/pandas/core/series.py", "map"),
         *name_frames("/polars/expr/expr.py", "map_elements"),
         *name_frames("/polars/series/series.py", "map_elements")), (), 35, is_through=True,
    ),
    CostlyCall(
        "polars_elements", "Rows or values of a polars frame are asked for one by one",
        "write it as one expression (filter, join, group_by, over), or take all at once "
        "(`to_dicts()`, to_list()) and loop over that",
        (*name_frames("/polars/dataframe/frame.py", "row __getitem__ item filter"),
         *name_frames("/polars/series/series.py", "__getitem__"),
         *name_frames("/polars/lazyframe/frame.py", "collect")), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "arrow_elements", "Values of Arrow arrays are asked for one by one",
        "work on the whole array (pyarrow.compute), or take it over once (to_pylist, to_numpy)",
        ("/pyarrow/lib.py:",), ("pyarrow.lib.Array.__getitem__",
         "pyarrow.lib.ChunkedArray.__getitem__",
         "pyarrow.lib.Scalar.as_py", "pyarrow.lib.Int64Scalar.as_py",
         "pyarrow.lib.DoubleScalar.as_py", "pyarrow.lib.StringScalar.as_py",
         "pyarrow.lib.Table.slice", "pyarrow.lib.Table.__getitem__", "pyarrow.lib.Table.column"),
         20,
    ),
    CostlyCall(
        "parquet_pieces",
        "Parquet or Arrow files are opened, or read in small pieces, again and again",
        "open a file once, read the columns that are needed with one call (`columns=`, "
        "`filters=`), "
        "and many rows at a time (iter_batches); write row groups of some 100 000 rows",
        ("/pyarrow/parquet/core.py:", "/pyarrow/dataset.py:", "/pyarrow/feather.py:"),
        ("pyarrow._parquet.ParquetReader.read_row_group", "pyarrow._parquet.ParquetReader.open",
         "pyarrow._parquet.ParquetReader.read_row_groups"), 25, stretch=SHORT,
    ),
    CostlyCall(
        "tables_as_text", "Tables or arrays are written or read as text, or shown",
        "for programs, store them in a binary form (Parquet, numpy.save); for a log, write a few "
        "numbers and not the whole",
        ("/pandas/io/formats/", "/pandas/io/json/", "/pandas/core/frame.py:to_dict",
         "/pandas/io/excel/", "/numpy/core/arrayprint.py:", "/numpy/_core/arrayprint.py:",
         "/torch/_tensor_str.py:", *name_numpy("lib/npyio.py lib/_npyio_impl.py", "savetxt loadtxt "
                                               "genfromtxt fromregex")), (), 20,
    ),
    CostlyCall(
        "arrays_cut",
        "Elements are put into an array, or taken out, one at a time (insert, delete)",
        "each call copies the whole array: collect what goes (a mask, a list of positions) and do "
        "it once, or keep a list",
        tuple(f"{base}{name}" for base in _BASE for name in ("insert", "delete")), (), 20,
        stretch=SHORT,
    ),
    CostlyCall(
        "arrays_sorted", "Arrays are sorted, or compared as sets, again and again",
        "do it once for all keys (numpy.unique with return_inverse and return_counts, bincount, "
        "lexsort), keep the sorted array and ask it with searchsorted",
        ("/numpy/lib/arraysetops.py:", "/numpy/lib/_arraysetops_impl.py:",
         *(f"{base}{name}" for base in _BASE for name in ("percentile", "quantile", "median")),
         *name_numpy("lib/nanfunctions.py lib/_nanfunctions_impl.py",
                     "nanpercentile nanquantile nanmedian")), (), 35, stretch=SHORT,
    ),
    CostlyCall(
        "along_axis", "A Python function is called for each row of an array (apply_along_axis)",
        "write it with operations on the whole array and `axis=`, or compile it with numba",
        name_numpy("lib/shape_base.py lib/_shape_base_impl.py", "apply_along_axis apply_over_axes")
        + tuple(f"{base}piecewise" for base in _BASE), (), 30, is_through=True,
    ),
    CostlyCall(
        "index_loops",
        "A loop in Python goes through all places of an array (ndenumerate, ndindex)",
        "work on the whole array (numpy.indices, masks, where), or compile the loop with numba",
        name_numpy("lib/index_tricks.py lib/_index_tricks_impl.py", "ndenumerate.__next__ "
                   "ndindex.__next__"), (), 15,
    ),
    CostlyCall(
        "single_vectors",
        "Lengths or cross products are computed of one short vector after the other",
        "do it once for all of them (`numpy.linalg.norm(points, axis=1)`, scipy's cdist), and for "
        "two or three numbers in plain Python (math.hypot, math.dist)",
        name_numpy("linalg/linalg.py linalg/_linalg.py", "norm cross")
        + name_numpy("core/numeric.py _core/numeric.py", "cross"), (), 20, stretch=SHORT,
    ),
    CostlyCall(
        "paths_of_einsum", "The order of an einsum is worked out again and again",
        "work it out once (`numpy.einsum_path`, opt_einsum.contract_expression) and hand it over",
        (*name_numpy("core/einsumfunc.py _core/einsumfunc.py", "einsum_path _greedy_path "
                     "_parse_einsum_input _optimal_path"), "/opt_einsum/"), (), 15, stretch=SHORT,
    ),
    CostlyCall(
        "random_arrays", "Drawing random numbers takes much of the time",
        "draw many at once and not one by one (`size=`), with numpy.random.default_rng, as float32 "
        "where that is enough",
        (), ("numpy.random.mtrand.RandomState.", "numpy.random._generator.Generator.",
             "numpy.random.mtrand."), 35,
    ),
    CostlyCall(
        "arrays_of_lists", "Arrays or tensors are made of Python lists, number by number",
        "keep the data in arrays from the start (numpy.stack, torch.from_numpy), convert it once, "
        "and read files straight into arrays",
        (), ("numpy.array", "numpy.asarray", f"{_FUNCTIONS}.tensor", f"{_FUNCTIONS}.as_tensor",
             "numpy.core.multiarray.array", "numpy.fromiter"), 30,
    ),
    CostlyCall(
        "arrays_asserted", "Tests of arrays (numpy.testing, torch.testing) take much of the time",
        "leave them to tests; in a program, numpy.array_equal or one isfinite(…).all()",
        ("/numpy/testing/", "/torch/testing/", "/pandas/_testing/",
         "/torch/autograd/gradcheck.py:"),
        (), 15,
    ),
    CostlyCall(
        "sparse_elements", "Elements of a sparse matrix are read or written one by one",
        "collect rows, columns and values in lists and make the matrix once (coo_matrix), work on "
        "its `data`, `indices` and `indptr`, or use a dictionary",
        name_frames("/scipy/sparse/_index.py", "__getitem__ __setitem__")
        + name_frames("/scipy/sparse/_lil.py", "__getitem__ __setitem__")
        + name_frames("/scipy/sparse/_dok.py", "__getitem__ __setitem__")
        + name_frames("/scipy/sparse/_compressed.py", "_insert_many _set_many _set_intXint"), (),
        20,
        stretch=SHORT,
    ),
    CostlyCall(
        "sparse_converted", "Sparse matrices change their form again and again",
        "make each once in the form that the work needs (CSR for rows, CSC for columns), and leave "
        "toarray out of the loop",
        tuple(f"/scipy/sparse/_{form}.py:{name}"
              for form in ("coo", "csr", "csc", "lil", "dok", "base", "compressed", "dia")
              for name in ("tocsr", "tocsc", "tocoo", "tolil", "asformat", "toarray", "todense")),
        (), 20, stretch=SHORT,
    ),
    CostlyCall(
        "single_statistics", "scipy.stats is asked for one value at a time; most of it is checking",
        "ask for a whole array at once, or use scipy.special (ndtr, ndtri, gammaln) or a line of "
        "numpy for the formula",
        ("/scipy/stats/_distn_infrastructure.py:",), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "gradients_tried", "The gradient is found by trying: one call for each parameter",
        "hand over the gradient (`jac=`), written out or by automatic differentiation (jax, torch)",
        ("/scipy/optimize/_numdiff.py:approx_derivative",), (), 40, is_through=True,
    ),
    CostlyCall(
        "single_distances", "Distances are computed of one pair after the other",
        "compute all at once (scipy.spatial.distance.cdist, pdist), or ask a cKDTree for many "
        "points with one call",
        name_frames("/scipy/spatial/distance.py", "euclidean cosine cityblock correlation "
                    "sqeuclidean hamming jaccard minkowski mahalanobis chebyshev canberra"), (), 20,
        stretch=SHORT,
    ),
    CostlyCall(
        "trees_asked", "Trees of points are built again, or asked for single points",
        "build the tree once, and ask it for many points with one call (`workers=-1`)",
        ("/scipy/spatial/_kdtree.py:",), ("scipy.spatial._ckdtree.cKDTree",
                                         "scipy.spatial._ckdtree.cKDTree."), 25, stretch=SHORT,
    ),
    CostlyCall(
        "few_rows_predicted", "A model is asked for few rows at a time: most of it is checking",
        "collect rows and predict many at once; `sklearn.config_context(assume_finite=True)` and "
        "`n_jobs=1` for single ones; of keras, call the model and not predict",
        ("/sklearn/utils/validation.py:", "/sklearn/utils/_param_validation.py:",
         "/sklearn/utils/_set_output.py:", "/sklearn/utils/_tags.py:",
         "/sklearn/utils/parallel.py:",
         "/sklearn/utils/_array_api.py:", "/sklearn/utils/_metadata_requests.py:",
         "/keras/src/backend/tensorflow/trainer.py:predict", "/keras/engine/training.py:predict",
         "/keras/src/engine/training.py:predict"), (), 30, stretch=SHORT,
    ),
    CostlyCall(
        "models_fitted", "Models, or what prepares their data, are fitted again and again",
        "fit once and keep the result; compute what is the same for all parameters before the "
        "search (`memory=` of a Pipeline), on fewer rows at first, with `n_jobs=-1`",
        ("/sklearn/base.py:wrapper", "/sklearn/model_selection/", "/sklearn/feature_extraction/",
         "/xgboost/training.py:train", "/lightgbm/engine.py:train"), (), 60,
    ),
    CostlyCall(
        "paths_in_graphs", "Paths in a graph are looked for one pair after the other (networkx)",
        "ask once from each start (single_source_shortest_path_length), keep the components for "
        "`has_path`, or use rustworkx, igraph or scipy.sparse.csgraph, which are in C",
        ("/networkx/algorithms/shortest_paths/", "/networkx/algorithms/traversal/"), (), 30,
        stretch=SHORT,
    ),
    CostlyCall(
        "graphs_copied", "Graphs are copied, or cut out of others, again and again",
        "take edges out and put them back, use views (subgraph_view, restricted_view), or copy "
        "once",
        name_frames("/networkx/classes/graph.py", "copy to_undirected to_directed subgraph "
                    "add_edges_from add_nodes_from")
        + name_frames("/networkx/classes/digraph.py", "reverse copy add_edges_from add_nodes_from")
        + name_frames("/networkx/algorithms/operators/binary.py", "compose union"), (), 25,
        stretch=SHORT,
    ),
    CostlyCall(
        "formulas_substituted", "Formulas are worked out with sympy, step by step",
        "turn the formula into a function once (sympy.lambdify) and call that with numbers or "
        "arrays", ("/sympy/core/basic.py:subs", "/sympy/core/evalf.py:",
        "/sympy/core/basic.py:xreplace",
                   "/sympy/utilities/lambdify.py:"), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "units_computed", "Computing with units takes much of the time",
        "take the plain number (`.value`, `.magnitude`) before the loop, and keep one UnitRegistry",
        ("/pint/", "/astropy/units/"), (), 25,
    ),
    CostlyCall(
        "projections_made", "Transformers of coordinates are made again and again",
        "make the Transformer once and call it with arrays",
        ("/pyproj/crs/", *name_frames("/pyproj/transformer.py", "from_crs __init__ from_pipeline")),
        (), 15, is_once=True,
    ),
    CostlyCall(
        "stored_elements", "Small pieces of an array in a file are read or written, one by one",
        "read and write larger slices into memory and cut there; choose chunks by how they are "
        "read; load an xarray variable once (`.load()`, `.values`)",
        ("/h5py/_hl/dataset.py:", "/h5py/_hl/attrs.py:", "/h5py/_hl/group.py:", "/zarr/",
         "/xarray/"),
        (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "dask_graphs", "Making and ordering the tasks of dask takes much of the time",
        "make fewer and larger ones (larger chunks, lists of items in one delayed call), and call "
        "compute once for all of them (`dask.compute(*all)`)",
        ("/dask/base.py:", "/dask/delayed.py:", "/dask/highlevelgraph.py:",
         "/dask/optimization.py:",
         "/dask/order.py:", "/dask/_task_spec.py:", "/dask/local.py:", "/dask/tokenize.py:",
         "/dask/array/", "/dask/dataframe/"), (), 30, state=WORKING,
    ),
)  # fmt: skip

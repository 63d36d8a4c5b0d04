// Dense linear algebra on arrays of V, in C++ one vector of samples, in CUDA one sample. Matrices are stored by
// rows; a packed triangle holds the rows of the lower half one after another.
//
// Sums grow in tiles of R x C registers, so that each entry that is read serves several products.

INLINE int row_of(int i) { return i * (i + 1) / 2; }
INLINE int packed_index(int i, int j) { return i * (i + 1) / 2 + j; }
INLINE int smaller(int i, int j) { return i < j ? i : j; }

// Adds the products of x(r, k) and y(k, c) for k from first to last - 1.
template <int R, int C, class X, class Y>
INLINE void add_products(V (&sum)[R][C], int first, int last, X x, Y y) {
  for (int k = first; k < last; ++k) {
    V left[R], right[C];
    UNROLL for (int r = 0; r < R; ++r) left[r] = x(r, k);
    UNROLL for (int c = 0; c < C; ++c) right[c] = y(k, c);
    UNROLL for (int r = 0; r < R; ++r) UNROLL for (int c = 0; c < C; ++c) sum[r][c] += left[r] * right[c];
  }
}

template <int R, int C>
INLINE void set_zero(V (&sum)[R][C]) {
  UNROLL for (int r = 0; r < R; ++r) UNROLL for (int c = 0; c < C; ++c) sum[r][c] = splat(0);
}

// Rows i to i + R - 1 and columns j to j + C - 1 of A B.
template <int R, int C>
INLINE void product_tile(
    int i, int j, int inner, int columns, int down, int along, const V* a, const V* b, V* out) {
  V sum[R][C];
  set_zero(sum);
  add_products(sum, 0, inner, [=](int r, int k) { return a[(i + r) * down + k * along]; },
               [=](int k, int c) { return b[k * columns + j + c]; });
  UNROLL for (int r = 0; r < R; ++r) UNROLL for (int c = 0; c < C; ++c) out[(i + r) * columns + j + c] = sum[r][c];
}

template <int R>
INLINE void product_rows(
    int i, int inner, int columns, int down, int along, const V* a, const V* b, V* out) {
  int j = 0;
  for (; j + 4 <= columns; j += 4) product_tile<R, 4>(i, j, inner, columns, down, along, a, b, out);
  if (columns - j == 3) product_tile<R, 3>(i, j, inner, columns, down, along, a, b, out);
  if (columns - j == 2) product_tile<R, 2>(i, j, inner, columns, down, along, a, b, out);
  if (columns - j == 1) product_tile<R, 1>(i, j, inner, columns, down, along, a, b, out);
}

// A B, where rows of A are `down` apart and entries of a row `along`.
BLOCK void dense_product(
    int rows, int inner, int columns, int down, int along, const V* b, const V* a, V* out) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) product_rows<4>(i, inner, columns, down, along, a, b, out);
  if (rows - i == 3) product_rows<3>(i, inner, columns, down, along, a, b, out);
  if (rows - i == 2) product_rows<2>(i, inner, columns, down, along, a, b, out);
  if (rows - i == 1) product_rows<1>(i, inner, columns, down, along, a, b, out);
}

// Sparse matrices. The table has the number of groups and, for each, the number of its rows, of their columns, the
// columns and the rows.

// The entries of one group, `entries[row * width + place]`.
struct Group {
  int height, width;
  const int *columns, *rows;
};
INLINE Group group_at(const int* table) { return {table[0], table[1], table + 2, table + 2 + table[1]}; }
INLINE const int* end_of(const Group& group) { return group.rows + group.height; }

// Rows i to i + R - 1 of A x.
template <int R>
INLINE void sparse_rows(const Group& group, int i, const V* x, const V* entries, V* out) {
  V sum[R][1];
  set_zero(sum);
  add_products(sum, 0, group.width, [&](int r, int k) { return entries[(i + r) * group.width + k]; },
               [&](int k, int) { return x[group.columns[k]]; });
  UNROLL for (int r = 0; r < R; ++r) out[group.rows[i + r]] = sum[r][0];
}

BLOCK void dense_sparse(int rows, const int* table, const V* x, const V* entries, V* out) {
  for (int i = 0; i < rows; ++i) out[i] = splat(0);
  const int* at = table + 1;
  for (int g = 0; g < table[0]; ++g) {
    const Group group = group_at(at);
    int i = 0;
    for (; i + 4 <= group.height; i += 4) sparse_rows<4>(group, i, x, entries, out);
    for (; i < group.height; ++i) sparse_rows<1>(group, i, x, entries, out);
    entries += group.height * group.width;
    at = end_of(group);
  }
}

// Adds the columns at places i to i + R - 1 of A* x.
template <int R>
INLINE void sparse_columns(const Group& group, int i, const V* x, const V* entries, V* out) {
  V sum[R][1];
  set_zero(sum);
  add_products(sum, 0, group.height, [&](int r, int k) { return entries[k * group.width + i + r]; },
               [&](int k, int) { return x[group.rows[k]]; });
  UNROLL for (int r = 0; r < R; ++r) out[group.columns[i + r]] += sum[r][0];
}

BLOCK void dense_sparse_adjoint(int columns, const int* table, const V* x, const V* entries, V* out) {
  for (int i = 0; i < columns; ++i) out[i] = splat(0);
  const int* at = table + 1;
  for (int g = 0; g < table[0]; ++g) {
    const Group group = group_at(at);
    int i = 0;
    for (; i + 4 <= group.width; i += 4) sparse_columns<4>(group, i, x, entries, out);
    for (; i < group.width; ++i) sparse_columns<1>(group, i, x, entries, out);
    entries += group.height * group.width;
    at = end_of(group);
  }
}

template <int R, int C>
INLINE void gram_tile(const Group& group, int i, int j, const V* w, const V* entries, V* out) {
  V sum[R][C];
  set_zero(sum);
  add_products(sum, 0, group.height,
               [&](int r, int k) { return w[group.rows[k]] * entries[k * group.width + i + r]; },
               [&](int k, int c) { return entries[k * group.width + j + c]; });
  UNROLL for (int r = 0; r < R; ++r) UNROLL for (int c = 0; c < C; ++c)
    if (j + c <= i + r) out[packed_index(group.columns[i + r], group.columns[j + c])] += sum[r][c];
}

template <int R>
INLINE void gram_rows(const Group& group, int i, const V* w, const V* entries, V* out) {
  int j = 0;
  for (; j + 4 <= i + R; j += 4) gram_tile<R, 4>(group, i, j, w, entries, out);
  for (; j < i + R; ++j) gram_tile<R, 1>(group, i, j, w, entries, out);
}

// A* w A + shift with the diagonal matrix w, packed, plus the matrix `start` if there is one.
BLOCK void dense_gram(
    int n, T shift, const int* table, const V* w, const V* entries, const V* start, V* out) {
  for (int i = 0; i < row_of(n); ++i) out[i] = start ? start[i] : splat(0);
  for (int i = 0; i < n; ++i) out[packed_index(i, i)] += splat(shift);
  const int* at = table + 1;
  for (int g = 0; g < table[0]; ++g) {
    const Group group = group_at(at);
    int i = 0;
    for (; i + 4 <= group.width; i += 4) gram_rows<4>(group, i, w, entries, out);
    for (; i < group.width; ++i) gram_rows<1>(group, i, w, entries, out);
    entries += group.height * group.width;
    at = end_of(group);
  }
}

// The terms of rows i to i + R - 1, and of these columns, of a product with a packed symmetric matrix.
template <int R>
INLINE void symmetric_rows(int i, const V* x, const V* a, V* out) {
  V sum[R][1], own[R];
  set_zero(sum);
  UNROLL for (int r = 0; r < R; ++r) own[r] = x[i + r];
  for (int j = 0; j < i; ++j) {
    V below = out[j];
    UNROLL for (int r = 0; r < R; ++r) {
      const V entry = a[row_of(i + r) + j];
      sum[r][0] += entry * x[j];
      below += entry * own[r];
    }
    out[j] = below;
  }
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int k = 0; k < R; ++k) sum[r][0] += a[k < r ? row_of(i + r) + i + k : row_of(i + k) + i + r] * own[k];
    out[i + r] = sum[r][0];
  }
}

BLOCK void dense_symmetric(int n, const V* x, const V* a, V* out) {
  int i = 0;
  for (; i + 4 <= n; i += 4) symmetric_rows<4>(i, x, a, out);
  for (; i < n; ++i) symmetric_rows<1>(i, x, a, out);
}

// Columns j to j + C - 1 of the rows i to i + R - 1 of L D, left of the diagonal block, into u.
template <int R, int C>
INLINE void eliminate_tile(int i, int j, const V* a, const V* l, const V* inverse, V (&u)[R][64], V* out) {
  V sum[R][C];
  set_zero(sum);
  add_products(sum, 0, j, [&](int r, int k) { return u[r][k]; },
               [=](int k, int c) { return l[row_of(j + c) + k]; });
  UNROLL for (int r = 0; r < R; ++r) UNROLL for (int c = 0; c < C; ++c) {
    V x = a[row_of(i + r) + j + c] - sum[r][c];
    UNROLL for (int k = 0; k < c; ++k) x -= u[r][j + k] * l[row_of(j + c) + j + k];
    u[r][j + c] = x;
    out[row_of(i + r) + j + c] = x * inverse[j + c];
  }
}

template <int R>
INLINE void eliminate_rows(int i, T least, const V* a, V* out, V* inverse) {
  V u[R][64];
  int j = 0;
  for (; j + 4 <= i; j += 4) eliminate_tile<R, 4>(i, j, a, out, inverse, u, out);
  for (; j < i; ++j) eliminate_tile<R, 1>(i, j, a, out, inverse, u, out);
  V sum[R][R];
  set_zero(sum);
  add_products(sum, 0, i, [&](int r, int k) { return u[r][k]; },
               [=](int k, int c) { return out[row_of(i + c) + k]; });
  UNROLL for (int r = 0; r < R; ++r) UNROLL for (int c = 0; c < R; ++c) if (c <= r) {
    V x = a[row_of(i + r) + i + c] - sum[r][c];
    UNROLL for (int k = 0; k < c; ++k) x -= u[r][i + k] * out[row_of(i + c) + i + k];
    u[r][i + c] = x;
    if (c < r) {
      out[row_of(i + r) + i + c] = x * inverse[i + c];
    } else {
      const V size = a[row_of(i + r) + i + r];
      const V pivot = least < 0 ? x : select(x > least * size, x, size);
      out[row_of(i + r) + i + r] = pivot;
      inverse[i + r] = 1 / pivot;
    }
  }
}

BLOCK void dense_ldl(int n, T least, const V* a, V* out) {
  V inverse[64];
  int i = 0;
  for (; i + 4 <= n; i += 4) eliminate_rows<4>(i, least, a, out, inverse);
  for (; i < n; ++i) eliminate_rows<1>(i, least, a, out, inverse);
}

BLOCK void dense_cholesky(int n, const V* a, V* out) {
  dense_ldl(n, -1, a, out);
  V root[64];
  for (int i = 0; i < n; ++i) {
    root[i] = vsqrt(out[packed_index(i, i)]);
    for (int j = 0; j < i; ++j) out[packed_index(i, j)] *= root[j];
    out[packed_index(i, i)] = root[i];
  }
}

// L and U in one matrix and the order of rows, with partial pivoting. Rows that no sample exchanges are not moved.
BLOCK void dense_lu(int n, const V* a, V* out) {
  V* order = out + n * n;
  for (int k = 0; k < n * n; ++k) out[k] = a[k];
  for (int k = 0; k < n; ++k) order[k] = splat((T)k);
  for (int k = 0; k + 1 < n; ++k) {
    V* top = out + k * n;
    V size = vabs(top[k]), pivot = splat((T)k);
    for (int i = k + 1; i < n; ++i) {
      const V other = vabs(out[i * n + k]);
      const M is_larger = (M)(other > size);
      size = select(is_larger, other, size);
      pivot = select(is_larger, splat((T)i), pivot);
    }
    for (int i = k + 1; i < n; ++i) {
      const M swap = (M)(pivot == splat((T)i));
      if (!in_any_lane(swap)) continue;
      V* row = out + i * n;
      for (int j = 0; j < n; ++j) {
        const V x = top[j], y = row[j];
        top[j] = select(swap, y, x);
        row[j] = select(swap, x, y);
      }
      const V x = order[k], y = order[i];
      order[k] = select(swap, y, x);
      order[i] = select(swap, x, y);
    }
    const V inverse = 1 / top[k];
    for (int i = k + 1; i < n; ++i) {
      V* row = out + i * n;
      const V factor = row[k] = row[k] * inverse;
      for (int j = k + 1; j < n; ++j) row[j] -= factor * top[j];
    }
  }
}

// Row order[i] of b is row i of the result.
BLOCK void dense_reorder(int n, int columns, const V* b, const V* order, V* out) {
  for (int i = 0; i < n; ++i)
    for (int c = 0; c < columns; ++c) {
      V x = b[c];
      for (int j = 1; j < n; ++j) x = select((M)(order[i] == splat((T)j)), b[j * columns + c], x);
      out[i * columns + c] = x;
    }
}

BLOCK void dense_reorder_back(int n, int columns, const V* b, const V* order, V* out) {
  for (int i = 0; i < n; ++i)
    for (int c = 0; c < columns; ++c) {
      V x = b[c];
      for (int j = 1; j < n; ++j) x = select((M)(order[j] == splat((T)i)), b[j * columns + c], x);
      out[i * columns + c] = x;
    }
}

// Reflects the C columns of x, whose rows are `width` apart, by reflection k of A.
template <int C>
INLINE void reflect(int rows, int columns, int k, int width, const V* qr, V* x) {
  V sum[C];
  UNROLL for (int c = 0; c < C; ++c) sum[c] = x[k * width + c];
  for (int i = k + 1; i < rows; ++i)
    UNROLL for (int c = 0; c < C; ++c) sum[c] += qr[i * columns + k] * x[i * width + c];
  UNROLL for (int c = 0; c < C; ++c) x[k * width + c] -= sum[c] *= qr[rows * columns + k];
  for (int i = k + 1; i < rows; ++i)
    UNROLL for (int c = 0; c < C; ++c) x[i * width + c] -= qr[i * columns + k] * sum[c];
}

// Reflections I - factor v v* that make A upper triangular: v below the diagonal, where its first entry is 1.
BLOCK void dense_qr(int rows, int columns, const V* a, V* out) {
  for (int k = 0; k < rows * columns; ++k) out[k] = a[k];
  for (int k = 0; k < columns; ++k) {
    V* top = out + k * columns + k;
    V square = *top * *top;
    for (int i = 1; i < rows - k; ++i) square += top[i * columns] * top[i * columns];
    const V length = vsqrt(square), end = select(*top > 0, -length, length);
    const V first = *top - end, inverse = 1 / first;
    for (int i = 1; i < rows - k; ++i) top[i * columns] *= inverse;
    *top = end;
    out[rows * columns + k] = -first / end;
    int j = k + 1;
    for (; j + 4 <= columns; j += 4) reflect<4>(rows, columns, k, columns, out, out + j);
    for (; j < columns; ++j) reflect<1>(rows, columns, k, columns, out, out + j);
  }
}

template <int C>
INLINE void fit_columns(int rows, int columns, int width, const V* b, const V* qr, V* out) {
  V x[64 * C];
  for (int i = 0; i < rows; ++i) UNROLL for (int c = 0; c < C; ++c) x[i * C + c] = b[i * width + c];
  for (int k = 0; k < columns; ++k) reflect<C>(rows, columns, k, C, qr, x);
  for (int k = columns - 1; k >= 0; --k) {
    const V inverse = 1 / qr[k * columns + k];
    V sum[C];
    UNROLL for (int c = 0; c < C; ++c) sum[c] = x[k * C + c];
    for (int j = k + 1; j < columns; ++j)
      UNROLL for (int c = 0; c < C; ++c) sum[c] -= qr[k * columns + j] * x[j * C + c];
    UNROLL for (int c = 0; c < C; ++c) out[k * width + c] = x[k * C + c] = sum[c] * inverse;
  }
}

BLOCK void dense_fit(int rows, int columns, int width, const V* b, const V* qr, V* out) {
  int j = 0;
  for (; j + 4 <= width; j += 4) fit_columns<4>(rows, columns, width, b + j, qr, out + j);
  for (; j < width; ++j) fit_columns<1>(rows, columns, width, b + j, qr, out + j);
}

template <int C>
INLINE void lift_columns(int rows, int columns, int width, const V* y, const V* qr, V* out) {
  for (int k = 0; k < columns; ++k) {
    const V inverse = 1 / qr[k * columns + k];
    V sum[C];
    UNROLL for (int c = 0; c < C; ++c) sum[c] = y[k * width + c];
    for (int j = 0; j < k; ++j)
      UNROLL for (int c = 0; c < C; ++c) sum[c] -= qr[j * columns + k] * out[j * width + c];
    UNROLL for (int c = 0; c < C; ++c) out[k * width + c] = sum[c] * inverse;
  }
  for (int i = columns; i < rows; ++i) UNROLL for (int c = 0; c < C; ++c) out[i * width + c] = splat(0);
  for (int k = columns - 1; k >= 0; --k) reflect<C>(rows, columns, k, width, qr, out);
}

BLOCK void dense_lift(int rows, int columns, int width, const V* y, const V* qr, V* out) {
  int j = 0;
  for (; j + 4 <= width; j += 4) lift_columns<4>(rows, columns, width, y + j, qr, out + j);
  for (; j < width; ++j) lift_columns<1>(rows, columns, width, y + j, qr, out + j);
}

template <int R, int C>
INLINE void forward_tile(int i, int j, int columns, bool unit, const V* b, const V* l, V* out) {
  V sum[R][C];
  set_zero(sum);
  add_products(sum, 0, i, [=](int r, int k) { return l[row_of(i + r) + k]; },
               [=](int k, int c) { return out[k * columns + j + c]; });
  UNROLL for (int r = 0; r < R; ++r) {
    const V inverse = unit ? splat(1) : 1 / l[row_of(i + r) + i + r];
    UNROLL for (int c = 0; c < C; ++c) {
      V x = b[(i + r) * columns + j + c] - sum[r][c];
      UNROLL for (int k = 0; k < r; ++k) x -= l[row_of(i + r) + i + k] * sum[k][c];
      out[(i + r) * columns + j + c] = sum[r][c] = x * inverse;
    }
  }
}

template <int R>
INLINE void forward_rows(int i, int columns, bool unit, const V* b, const V* l, V* out) {
  int j = 0;
  for (; j + 4 <= columns; j += 4) forward_tile<R, 4>(i, j, columns, unit, b, l, out);
  for (; j < columns; ++j) forward_tile<R, 1>(i, j, columns, unit, b, l, out);
}

BLOCK void dense_forward(int n, int columns, bool unit, const V* b, const V* l, V* out) {
  int i = 0;
  for (; i + 4 <= n; i += 4) forward_rows<4>(i, columns, unit, b, l, out);
  for (; i < n; ++i) forward_rows<1>(i, columns, unit, b, l, out);
}

// L^-1 A* of a sparse A with `columns` rows.
BLOCK void dense_sparse_forward(
    int n, int columns, bool unit, const int* table, const V* entries, const V* l, V* out) {
  for (int i = 0; i < n * columns; ++i) out[i] = splat(0);
  const int* at = table + 1;
  for (int g = 0; g < table[0]; ++g) {
    const Group group = group_at(at);
    for (int i = 0; i < group.height; ++i)
      for (int k = 0; k < group.width; ++k) out[group.columns[k] * columns + group.rows[i]] = *entries++;
    at = end_of(group);
  }
  dense_forward(n, columns, unit, out, l, out);
}

// Rows i to i + R - 1, after all rows below them.
template <int R, int C>
INLINE void backward_tile(int n, int i, int j, int columns, bool unit, const V* b, const V* l, V* out) {
  V sum[R][C];
  set_zero(sum);
  add_products(sum, i + R, n, [=](int r, int k) { return l[row_of(k) + i + r]; },
               [=](int k, int c) { return out[k * columns + j + c]; });
  UNROLL for (int r = R - 1; r >= 0; --r) {
    const V inverse = unit ? splat(1) : 1 / l[row_of(i + r) + i + r];
    UNROLL for (int c = 0; c < C; ++c) {
      V x = b[(i + r) * columns + j + c] - sum[r][c];
      UNROLL for (int k = r + 1; k < R; ++k) x -= l[row_of(i + k) + i + r] * sum[k][c];
      out[(i + r) * columns + j + c] = sum[r][c] = x * inverse;
    }
  }
}

template <int R>
INLINE void backward_rows(int n, int i, int columns, bool unit, const V* b, const V* l, V* out) {
  int j = 0;
  for (; j + 4 <= columns; j += 4) backward_tile<R, 4>(n, i, j, columns, unit, b, l, out);
  for (; j < columns; ++j) backward_tile<R, 1>(n, i, j, columns, unit, b, l, out);
}

BLOCK void dense_backward(int n, int columns, bool unit, const V* b, const V* l, V* out) {
  int i = n;
  for (; i >= 4; i -= 4) backward_rows<4>(n, i - 4, columns, unit, b, l, out);
  for (; i > 0; --i) backward_rows<1>(n, i - 1, columns, unit, b, l, out);
}

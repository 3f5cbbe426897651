/* Attention along the ancestors of a forest's tokens, forward and backward.
 *
 * Tokens lie in depth-first preorder, so a token is seen by itself and by what follows it, up to `until`, one past its last
 * descendant. A tile of TILE consecutive queries sees the ancestors of its first token, one for each depth, and its own
 * tokens: their keys and values are held in slots, the ancestor at depth d in slot d, which are loaded when the token of a slot
 * changes and are mostly still there for the next tile. Gradients of keys and values are summed in slots too and written out when
 * a slot changes. One task is one tree and one key head, and owns their gradients: no atomics, and the same sums for any
 * number of threads.
 *
 * Built for REAL float, or double with DOUBLE, DIM of keys and VALUE_DIM of values, multiples of 16.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef DOUBLE
typedef double REAL;
typedef int64_t INT;
#define LOG log
#else
typedef float REAL;
typedef int32_t INT;
#define LOG logf
#endif

#if defined(__AVX512F__)
#define BYTES 64
#define ROWS 8
#elif defined(__AVX__)
#define BYTES 32
#define ROWS 4
#else
#define BYTES 16
#define ROWS 4
#endif

#define LANES ((int)(BYTES / sizeof(REAL)))
#define PAIR (2 * LANES)
#define TILE 16
#define HIDDEN ((REAL)-1e30)
#define INLINE static inline __attribute__((always_inline))

typedef REAL vec __attribute__((vector_size(BYTES)));
typedef INT ints __attribute__((vector_size(BYTES)));
typedef REAL loose_vec __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
typedef INT loose_ints __attribute__((vector_size(BYTES), aligned(sizeof(INT)), may_alias));

#define LOAD(p) (*(const loose_vec *)(p))
#define STORE(p, v) (*(loose_vec *)(p) = (v))

/* What one call works on; strides count elements, and a head's elements lie back to back. */
typedef struct {
    const REAL *query, *key, *value, *gradient;         /* [tokens, heads or key_heads, DIM or VALUE_DIM] */
    REAL *out, *logsum;                                 /* [tokens, heads, VALUE_DIM], [tokens, heads] */
    REAL *query_gradient, *key_gradient, *value_gradient; /* back to back; of keys and values zero at first */
    const int64_t *parent, *depth, *until, *starts;     /* [tokens] each; [trees + 1] */
    int64_t trees, longest, heads, key_heads, threads;
    int64_t query_row, query_head, key_row, key_head, value_row, value_head, gradient_row, gradient_head;
    double scale;
} Job;

/* C [rows, vectors * LANES] = or += sum over `inner` of A(row, j) * B(j). */
INLINE void multiply_block(int rows, int vectors, REAL *c, int64_t c_row, const REAL *a, int64_t a_row, int64_t a_step,
                           const REAL *b, int64_t b_row, int64_t inner, int add) {
    vec sum[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[r][v] = add ? (vec)LOAD(c + r * c_row + v * LANES) : (vec){0};
    for (int64_t j = 0; j < inner; j++) {
        vec right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = LOAD(b + j * b_row + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const REAL left = a[r * a_row + j * a_step];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) STORE(c + r * c_row + v * LANES, sum[r][v]);
}

INLINE void multiply_panel(int vectors, REAL *c, int64_t c_row, const REAL *a, int64_t a_row, int64_t a_step, const REAL *b,
                           int64_t b_row, int64_t rows, int64_t inner, int add) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        multiply_block(ROWS, vectors, c + r * c_row, c_row, a + r * a_row, a_row, a_step, b, b_row, inner, add);
    for (; r + 2 <= rows; r += 2)
        multiply_block(2, vectors, c + r * c_row, c_row, a + r * a_row, a_row, a_step, b, b_row, inner, add);
    if (r < rows) multiply_block(1, vectors, c + r * c_row, c_row, a + r * a_row, a_row, a_step, b, b_row, inner, add);
}

/* C [rows, columns] = or += A [rows, inner] B [inner, columns], A by two strides; `columns` is a multiple of LANES. */
INLINE void multiply(REAL *c, int64_t c_row, const REAL *a, int64_t a_row, int64_t a_step, const REAL *b, int64_t b_row,
                     int64_t rows, int64_t columns, int64_t inner, int add) {
    int64_t n = 0;
    for (; n + PAIR <= columns; n += PAIR)
        multiply_panel(2, c + n, c_row, a, a_row, a_step, b + n, b_row, rows, inner, add);
    if (n < columns) multiply_panel(1, c + n, c_row, a, a_row, a_step, b + n, b_row, rows, inner, add);
}

/* e^x of x <= 0; 0 below the smallest normal number. What is not a number stays so. */
INLINE vec exponential(vec x) {
#ifdef DOUBLE
    for (int i = 0; i < LANES; i++) x[i] = exp(x[i]);
    return x;
#else
    const REAL log2e = 1.44269504088896340736f, lowest = -87, high = 0.693359375f, low = -2.12194440e-4f;
    static const REAL factor[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f};
    const ints whole = __builtin_convertvector(x * log2e - 0.5f, ints); /* rounds to the nearest, as x <= 0 */
    const vec count = __builtin_convertvector(whole, vec), rest = x - count * high - count * low;
    vec sum = (vec){0} + factor[0];
#pragma GCC unroll 12
    for (unsigned i = 1; i < sizeof(factor) / sizeof(REAL); i++) sum = sum * rest + factor[i];
    sum = (sum * rest * rest + rest + 1) * (vec)((whole + 127) << 23);
    return (vec)((ints)sum & ~(ints)(x < lowest));
#endif
}

INLINE REAL sum_lanes(vec v) {
    REAL sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

/* What a thread keeps of the path that it is on. `size` slots; `row` is the distance between rows of what has a column a slot. */
typedef struct {
    int64_t size, row, held;
    INT *token, *until;                       /* [row] which token a slot holds, and until where it is seen */
    REAL *key, *keys_across, *values_across;  /* [size, DIM], [DIM, row], [VALUE_DIM, row] */
    REAL *value;                              /* [size, VALUE_DIM] */
    REAL *key_sum, *value_sum;                /* gradients, [size, DIM or VALUE_DIM] */
    REAL *scores, *slopes;                    /* [TILE, row] */
    void *memory;
} Path;

static int open_path(Path *path, int64_t longest) {
    const int64_t size = longest + TILE, row = (size + PAIR - 1) / PAIR * PAIR + LANES; /* no power of two */
    const int64_t slots[] = {row, row, size * DIM, DIM * row, VALUE_DIM * row, size * VALUE_DIM, size * DIM,
                             size * VALUE_DIM, TILE * row, TILE * row};
    int64_t total = LANES;
    for (int i = 0; i < 10; i++) total += (slots[i] + LANES - 1) / LANES * LANES;
    path->memory = calloc(total, sizeof(REAL));
    if (!path->memory) return 0;
    REAL *at = (REAL *)(((uintptr_t)path->memory + BYTES - 1) / BYTES * BYTES), *part[10];
    for (int i = 0; i < 10; i++) part[i] = at, at += (slots[i] + LANES - 1) / LANES * LANES;
    *path = (Path){size, row, 0, (INT *)part[0], (INT *)part[1], part[2], part[3], part[4],
                   part[5], part[6], part[7], part[8], part[9], path->memory};
    return 1;
}

/* Adds the gradients of the slots from `first` to their tokens, and gives the slots up. */
static void leave(const Job *job, Path *path, int64_t first, int64_t head, int backward) {
    for (int64_t slot = first; backward && slot < path->held; slot++) {
        const int64_t row = path->token[slot] * job->key_heads + head;
        for (int d = 0; d < DIM; d++) job->key_gradient[row * DIM + d] += path->key_sum[slot * DIM + d];
        for (int d = 0; d < VALUE_DIM; d++) job->value_gradient[row * VALUE_DIM + d] += path->value_sum[slot * VALUE_DIM + d];
    }
    path->held = first;
}

static void take(const Job *job, Path *path, int64_t slot, int64_t token, int64_t head, int backward) {
    const REAL *key = job->key + token * job->key_row + head * job->key_head;
    const REAL *value = job->value + token * job->value_row + head * job->value_head;
    path->token[slot] = (INT)token, path->until[slot] = (INT)job->until[token];
    for (int d = 0; d < DIM; d++) path->keys_across[d * path->row + slot] = key[d];
    if (!backward) {
        memcpy(path->value + slot * VALUE_DIM, value, sizeof(REAL) * VALUE_DIM);
        return;
    }
    for (int d = 0; d < VALUE_DIM; d++) path->values_across[d * path->row + slot] = value[d];
    memcpy(path->key + slot * DIM, key, sizeof(REAL) * DIM);
    memset(path->key_sum + slot * DIM, 0, sizeof(REAL) * DIM);
    memset(path->value_sum + slot * VALUE_DIM, 0, sizeof(REAL) * VALUE_DIM);
}

/* Puts the ancestors of `first` and the tokens from `first` to `end` into slots. */
static void enter(const Job *job, Path *path, int64_t first, int64_t end, int64_t head, int backward) {
    const int64_t depth = job->depth[first];
    int64_t kept = depth, token = job->parent[first];
    while (kept > 0 && (kept > path->held || path->token[kept - 1] != token)) kept--, token = job->parent[token];
    leave(job, path, kept, head, backward);
    token = job->parent[first];
    for (int64_t slot = depth; slot-- > kept; token = job->parent[token]) take(job, path, slot, token, head, backward);
    for (int64_t i = 0; i < end - first; i++) take(job, path, depth + i, first + i, head, backward);
    path->held = depth + end - first;
    for (int64_t slot = path->held; slot < path->row; slot++) path->token[slot] = INT32_MAX; /* never seen */
}

/* scores [end - first, slots] = query . keys, and HIDDEN where a query does not see a slot; returns slots in whole vectors. */
static int64_t score(const Job *job, Path *path, int64_t first, int64_t end, int64_t head) {
    const int64_t columns = (path->held + LANES - 1) / LANES * LANES, row = path->row;
    multiply(path->scores, row, job->query + first * job->query_row + head * job->query_head, job->query_row, 1,
             path->keys_across, row, end - first, columns, DIM, 0);
    int64_t masked = job->depth[first]; /* what is before is seen by the whole tile */
    while (masked > 0 && path->until[masked - 1] < end) masked--;
    for (int64_t token = first; token < end; token++)
        for (int64_t slot = masked / LANES * LANES; slot < columns; slot += LANES) {
            REAL *place = path->scores + (token - first) * row + slot;
            const ints sees = (*(const loose_ints *)(path->token + slot) <= (INT)token) &
                              (*(const loose_ints *)(path->until + slot) > (INT)token);
            const ints hidden = (ints)((vec){0} + HIDDEN);
            STORE(place, (vec)(((ints)LOAD(place) & sees) | (hidden & ~sees)));
        }
    return columns;
}

/* Turns a row of scores into e^(scale * score - most) and returns their sum with the largest in `most`. */
static REAL soften(REAL *scores, int64_t columns, REAL scale, REAL *most) {
    vec top = (vec){0} + HIDDEN * 2, sum = {0};
    for (int64_t i = 0; i < columns; i += LANES) {
        const vec score = LOAD(scores + i) * scale;
        const ints more = score > top;
        top = (vec)(((ints)score & more) | ((ints)top & ~more));
    }
    *most = top[0];
    for (int i = 1; i < LANES; i++) *most = top[i] > *most ? top[i] : *most;
    for (int64_t i = 0; i < columns; i += LANES) {
        const vec weight = exponential(LOAD(scores + i) * scale - *most);
        STORE(scores + i, weight);
        sum += weight;
    }
    return sum_lanes(sum);
}

static void forward_tile(const Job *job, Path *path, int64_t first, int64_t end, int64_t head) {
    const int64_t columns = score(job, path, first, end, head), out_row = job->heads * VALUE_DIM;
    REAL *out = job->out + first * out_row + head * VALUE_DIM, shares[TILE];
    for (int64_t i = 0; i < end - first; i++) {
        REAL most, *weights = path->scores + i * path->row;
        const REAL sum = soften(weights, columns, (REAL)job->scale, &most);
        job->logsum[(first + i) * job->heads + head] = most + LOG(sum);
        shares[i] = 1 / sum;
    }
    multiply(out, out_row, path->scores, path->row, 1, path->value, VALUE_DIM, end - first, VALUE_DIM, path->held, 0);
    for (int64_t i = 0; i < end - first; i++)
        for (int d = 0; d < VALUE_DIM; d++) out[i * out_row + d] *= shares[i];
}

/* Turns rows of scores into weights, and of slopes (gradient . values) into the scores' gradients. */
static void slope(const Job *job, Path *path, int64_t first, int64_t end, int64_t head, int64_t columns) {
    const REAL scale = (REAL)job->scale;
    for (int64_t i = 0; i < end - first; i++) {
        const int64_t place = (first + i) * job->heads + head;
        const REAL *out = job->out + place * VALUE_DIM, logsum = job->logsum[place];
        const REAL *gradient = job->gradient + (first + i) * job->gradient_row + head * job->gradient_head;
        REAL *scores = path->scores + i * path->row, *slopes = path->slopes + i * path->row;
        vec products = {0};
        for (int d = 0; d < VALUE_DIM; d += LANES) products += LOAD(out + d) * LOAD(gradient + d);
        const REAL mean = sum_lanes(products);
        for (int64_t slot = 0; slot < columns; slot += LANES) {
            const vec weight = exponential(LOAD(scores + slot) * scale - logsum);
            STORE(scores + slot, weight);
            STORE(slopes + slot, weight * (LOAD(slopes + slot) - mean) * scale);
        }
    }
}

static void backward_tile(const Job *job, Path *path, int64_t first, int64_t end, int64_t head) {
    const int64_t columns = score(job, path, first, end, head), row = path->row, count = end - first, held = path->held;
    const REAL *query = job->query + first * job->query_row + head * job->query_head;
    const REAL *gradient = job->gradient + first * job->gradient_row + head * job->gradient_head;
    multiply(path->slopes, row, gradient, job->gradient_row, 1, path->values_across, row, count, columns, VALUE_DIM, 0);
    slope(job, path, first, end, head, columns);
    multiply(path->value_sum, VALUE_DIM, path->scores, 1, row, gradient, job->gradient_row, held, VALUE_DIM, count, 1);
    multiply(path->key_sum, DIM, path->slopes, 1, row, query, job->query_row, held, DIM, count, 1);
    multiply(job->query_gradient + (first * job->heads + head) * DIM, job->heads * DIM, path->slopes, row, 1, path->key, DIM,
             count, DIM, held, 0);
}

/* All trees and heads; 0 where there was no memory to work in. */
static int run(const Job *job, int backward) {
    const int64_t groups = job->heads / job->key_heads;
    int done = 1;
#pragma omp parallel num_threads(job->threads) reduction(& : done)
    {
        Path path;
        done = open_path(&path, job->longest);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < job->trees * job->key_heads; task++) {
            const int64_t tree = task / job->key_heads, key_head = task % job->key_heads, stop = job->starts[tree + 1];
            if (!done) continue;
            for (int64_t first = job->starts[tree]; first < stop; first += TILE) {
                const int64_t end = first + TILE < stop ? first + TILE : stop;
                enter(job, &path, first, end, key_head, backward);
                for (int64_t head = key_head * groups; head < (key_head + 1) * groups; head++)
                    (backward ? backward_tile : forward_tile)(job, &path, first, end, head);
            }
            leave(job, &path, 0, key_head, backward);
        }
        if (done) free(path.memory);
    }
    return done;
}

int attend(const Job *job) { return run(job, 0); }

int differentiate(const Job *job) { return run(job, 1); }

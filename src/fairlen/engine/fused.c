/* One decode step of a Llama or Qwen3 model: a token a row in, logits out, keys and values of it stored, in float32.
 *
 * Rows lie side by side in vectors, activations as [size][width] of them, so that weights are read as they are, a number at a
 * time for all rows, and every row has arithmetic of its own: its logits do not depend on the other rows, to the bit.
 * Threads share the rows of a small model, and of one that is `large` the outputs of each product, so that each weight is read
 * once a step. Weights of products may be bfloat16 where the processor has tiles (AMX): then its other operand is rounded to it
 * too, and sums are float32.
 * Built for one shape of heads: DIM numbers, a multiple of 8, and GROUPS heads that share keys and values.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AMX_BF16__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define HEIGHT 8
#elif defined(__AVX__)
#define LANES 8
#define HEIGHT 4
#else
#define LANES 4
#define HEIGHT 4
#endif
#define WIDTH 2 /* HEIGHT * WIDTH sums of a matrix product are in registers */
#define MOST 8  /* vectors of a block of rows of a large model; WIDTH of a small one */
#define TILE 16 /* rows of a tile, which has 32 numbers in bfloat16 of each */
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define OCTS (DIM / 8)
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t uints __attribute__((vector_size(4 * LANES)));
typedef float oct __attribute__((vector_size(32)));
typedef oct loose __attribute__((aligned(4)));
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t places __attribute__((vector_size(32)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

/* Argument of `decode`; weights of each layer: input norm, q, k, v, q norm, k norm (or none), o, norm, gate, up, down. */
typedef struct {
    const int64_t *tokens, *positions; /* [rows] */
    const int64_t *origins, *shared;   /* [rows]: a row whose first so many keys and values are the same, which is read instead */
    float *logits;                     /* [rows, vocab] */
    const float *cosines, *sines;      /* [columns, DIM / 2] */
    const float *embeddings, *norm;
    const void *head;
    const void *const *weights; /* [layers, 11] */
    float *const *states;        /* [layers, 2]: keys and values [.., key heads, columns, DIM] */
    float *scratch;              /* [threads, room], of whole vectors */
    int64_t rows, layers, hidden, key_heads, inner, vocab, columns, room, threads, large, low;
    double epsilon, scale;
} Step;

INLINE vec choose(ints mask, vec one, vec other) { return (vec)((mask & (ints)one) | (~mask & (ints)other)); }

/* exp(x) within 2 units in the last place for -87 < x < 88, to which others are cut; not a number stays so. */
INLINE vec exponential(vec x) {
    const vec low = x * 0 - 87.0f, high = x * 0 + 88.0f, magic = x * 0 + 12582912.0f;
    x = choose(x < low, low, x);
    x = choose(x > high, high, x);
    const vec shifted = x * 1.44269504f + magic, whole = shifted - magic; /* the nearest integer */
    const vec rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vec sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return sum * (vec)(((ints)shifted - (ints)magic + 127) << 23);
}

/* out [height][span of width] = or += weights [height, depth] . x [depth][span of width] */
INLINE void multiply_tile(const float *weights, const vec *x, vec *out, int64_t depth, int width, int height, int span,
                          int adds) {
    vec sums[HEIGHT][WIDTH];
    UNROLL for (int h = 0; h < height; h++) UNROLL for (int v = 0; v < span; v++) sums[h][v] = (vec){0};
    for (int64_t first = 0; first < depth; first += LANES) { /* ahead: rows are too short for the processor to foresee the next */
        UNROLL for (int h = 0; h < height; h++) __builtin_prefetch(weights + (height + h) * depth + first);
        for (int64_t i = first; i < MIN(first + LANES, depth); i++)
            UNROLL for (int h = 0; h < height; h++)
                UNROLL for (int v = 0; v < span; v++) sums[h][v] += weights[h * depth + i] * x[i * width + v];
    }
    UNROLL for (int h = 0; h < height; h++)
        UNROLL for (int v = 0; v < span; v++) out[h * width + v] = adds ? out[h * width + v] + sums[h][v] : sums[h][v];
}

INLINE void multiply_rows(const float *weights, const vec *x, vec *out, int64_t depth, int width, int height, int adds) {
    int v = 0;
    for (; v + WIDTH <= width; v += WIDTH) multiply_tile(weights, x + v, out + v, depth, width, height, WIDTH, adds);
    for (; v < width; v++) multiply_tile(weights, x + v, out + v, depth, width, height, 1, adds);
}

#ifdef __AMX_BF16__
/* The same of TILE weights in bfloat16, of 2 TILE where it is tall, and one vector of pairs, two where it is wide. */
INLINE void multiply_low_tile(const uint16_t *weights, const vec *x, vec *out, int64_t depth, int width, int tall, int wide,
                              int adds) {
    const int64_t along = 2 * depth, across = width * sizeof *x;
    vec *lower = out + TILE * width;
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    if (adds) _tile_loadd(0, out, across);
    if (adds && wide) _tile_loadd(1, out + 1, across);
    if (adds && tall) _tile_loadd(2, lower, across);
    if (adds && tall && wide) _tile_loadd(3, lower + 1, across);
    for (int64_t i = 0; i < depth; i += 32) {
        const vec *pairs = x + i / 2 * width;
        UNROLL for (int h = 0; h < TILE; h++) {
            __builtin_prefetch(weights + (2 * TILE + h) * depth + i);
            __builtin_prefetch(weights + (3 * TILE + h) * depth + i);
        }
        _tile_loadd(4, weights + i, along);
        _tile_loadd(6, pairs, across);
        _tile_dpbf16ps(0, 4, 6);
        if (wide) _tile_loadd(7, pairs + 1, across);
        if (wide) _tile_dpbf16ps(1, 4, 7);
        if (tall) _tile_loadd(5, weights + TILE * depth + i, along);
        if (tall) _tile_dpbf16ps(2, 5, 6);
        if (tall && wide) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, across);
    if (wide) _tile_stored(1, out + 1, across);
    if (tall) _tile_stored(2, lower, across);
    if (tall && wide) _tile_stored(3, lower + 1, across);
}

INLINE void multiply_low_rows(const uint16_t *weights, const vec *x, vec *out, int64_t depth, int width, int tall, int adds) {
    int v = 0;
    for (; v + 2 <= width; v += 2) multiply_low_tile(weights, x + v, out + v, depth, width, tall, 1, adds);
    if (v < width) multiply_low_tile(weights, x + v, out + v, depth, width, tall, 0, adds);
}

static void multiply_low(const uint16_t *weights, const vec *x, vec *out, int64_t first, int64_t end, int64_t depth, int width,
                         int adds) {
    int64_t o = first;
    for (; o + 2 * TILE <= end; o += 2 * TILE) multiply_low_rows(weights + o * depth, x, out + o * width, depth, width, 1, adds);
    if (o < end) multiply_low_rows(weights + o * depth, x, out + o * width, depth, width, 0, adds);
}

static void open_tiles(void) {
    struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int t = 0; t < 8; t++) config.bytes[t] = 64, config.rows[t] = TILE;
    _tile_loadconfig(&config);
}

int64_t has_tiles(void) { return 1; }
#else
static void multiply_low(const uint16_t *weights, const vec *x, vec *out, int64_t first, int64_t end, int64_t depth, int width,
                         int adds) {}
static void open_tiles(void) {}
#define _tile_release()
int64_t has_tiles(void) { return 0; }
#endif

/* Rows `first` to `end` of out [size][width] = or += weights [size, depth] . x, by `prepare` */
static void multiply(const Step *step, const void *weights, const vec *x, vec *out, int64_t first, int64_t end, int64_t depth,
                     int width, int adds) {
    const float *rows = weights;
    int64_t o = first;
    if (step->low) return multiply_low(weights, x, out, first, end, depth, width, adds);
    for (; o + HEIGHT <= end; o += HEIGHT) multiply_rows(rows + o * depth, x, out + o * width, depth, width, HEIGHT, adds);
    for (; o < end; o++) multiply_rows(rows + o * depth, x, out + o * width, depth, width, 1, adds);
}

/* x [depth][width] as an operand of `multiply`: as it is, or rounded in `pairs` [depth / 2][width], the even one low. */
static const vec *prepare(const Step *step, const vec *x, int64_t depth, int width, vec *pairs) {
    if (!step->low) return x;
    for (int64_t i = 0; i < depth; i += 2)
        for (int v = 0; v < width; v++) {
            const uints even = (uints)x[i * width + v], odd = (uints)x[(i + 1) * width + v];
            const uints low = (even + 0x7fff + (even >> 16 & 1)) >> 16, high = odd + 0x7fff + (odd >> 16 & 1);
            pairs[i / 2 * width + v] = (vec)(low | (high & 0xffff0000u));
        }
    return pairs;
}

/* out [size][width] = x / rms(x) * weight; they may be the same */
static void normalize(const vec *x, const float *weight, vec *out, int64_t size, int width, float epsilon) {
    for (int v = 0; v < width; v++) {
        vec sum = {0};
        for (int64_t i = 0; i < size; i++) sum += x[i * width + v] * x[i * width + v];
        for (int l = 0; l < LANES; l++) sum[l] = 1.0f / sqrtf(sum[l] / size + epsilon);
        for (int64_t i = 0; i < size; i++) out[i * width + v] = x[i * width + v] * sum * weight[i];
    }
}

/* Normalizes heads [..][DIM][width] where there is a weight, and turns them by the angles [DIM / 2][width] of their positions. */
static void turn(vec *heads, const vec *end, const float *weight, const vec *cosine, const vec *sine, int width, float epsilon) {
    const int64_t half = DIM / 2 * width;
    for (vec *head = heads; head < end; head += 2 * half) {
        if (weight) normalize(head, weight, head, DIM, width, epsilon);
        for (int64_t i = 0; i < half; i++) {
            const vec one = head[i], other = head[i + half];
            head[i] = one * cosine[i] - other * sine[i];
            head[i + half] = other * cosine[i] + one * sine[i];
        }
    }
}

/* Copies one row's numbers out of the vectors, and into them. */
static void take(const float *from, float *to, int64_t size, int64_t lanes) {
    for (int64_t i = 0; i < size; i++) to[i] = from[i * lanes];
}

static void put(const float *from, float *to, int64_t size, int64_t lanes) {
    for (int64_t i = 0; i < size; i++) to[i * lanes] = from[i];
}

#define ADD(a, b, these, those) (SHUFFLE(a, b, UNPACK these) + SHUFFLE(a, b, UNPACK those))
#define UNPACK(...) __VA_ARGS__

/* The sums of eight vectors: pairs of numbers, of pairs, of halves. */
INLINE oct fold(const oct *p) {
    oct pairs[4], fours[2];
    UNROLL for (int i = 0; i < 8; i += 2)
        pairs[i / 2] = ADD(p[i], p[i + 1], (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15));
    UNROLL for (int i = 0; i < 4; i += 2)
        fours[i / 2] = ADD(pairs[i], pairs[i + 1], (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15));
    return ADD(fours[0], fours[1], (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15));
}

/* Makes weights of scores [padded]: exp(score - top), with zeros from `count` on. Returns one over their sum. */
static float weigh(float *scores, int64_t count, int64_t padded) {
    vec *parts = (vec *)scores, top, sum = {0};
    for (int64_t c = count; c < padded; c++) scores[c] = scores[0];
    top = parts[0];
    for (int64_t c = 1; c < padded / LANES; c++) top = choose(parts[c] > top, parts[c], top);
    float highest = top[0], total = 0;
    for (int l = 1; l < LANES; l++) highest = top[l] > highest ? top[l] : highest;
    for (int64_t c = 0; c < padded / LANES; c++) parts[c] = exponential(parts[c] - highest);
    for (int64_t c = count; c < padded; c++) scores[c] = 0;
    for (int64_t c = 0; c < padded / LANES; c++) sum += parts[c];
    for (int l = 0; l < LANES; l++) total += sum[l];
    return 1.0f / total;
}

/* query [GROUPS, DIM] over keys, values [count, DIM], the first `shared` of them elsewhere: out [GROUPS, DIM]; scores [GROUPS,
 * padded] to work in. */
static void attend(const float *query, const float *own_keys, const float *own_values, const float *other_keys,
                   const float *other_values, int64_t shared, float *out, float *scores, int64_t count) {
    const int64_t padded = (count + 15) & ~15;
    oct asked[GROUPS][OCTS], mixed[GROUPS][OCTS];
    memcpy(asked, query, sizeof asked);
    memset(mixed, 0, sizeof mixed);
    for (int64_t c = 0; c < count; c += 8) {
        const float *keys = c < shared ? other_keys : own_keys, *values = c < shared ? other_values : own_values;
        oct products[GROUPS][8];
        UNROLL for (int j = 0; j < 8; j++) UNROLL for (int d = 0; d < DIM; d += 16) {
            __builtin_prefetch(keys + (c + 16 + j) * DIM + d);
            __builtin_prefetch(values + (c + j) * DIM + d, 0, 2);
        }
        UNROLL for (int j = 0; j < 8; j++) {
            const loose *key = (const loose *)(keys + (c + j < count ? c + j : count - 1) * DIM);
            UNROLL for (int g = 0; g < GROUPS; g++) {
                products[g][j] = asked[g][0] * key[0];
                UNROLL for (int d = 1; d < OCTS; d++) products[g][j] += asked[g][d] * key[d];
            }
        }
        UNROLL for (int g = 0; g < GROUPS; g++) *(loose *)(scores + g * padded + c) = fold(products[g]);
    }
    float shares[GROUPS];
    for (int g = 0; g < GROUPS; g++) shares[g] = weigh(scores + g * padded, count, padded);
    for (int64_t c = 0; c < count; c++) {
        const loose *value = (const loose *)((c < shared ? other_values : own_values) + c * DIM);
        UNROLL for (int g = 0; g < GROUPS; g++)
            UNROLL for (int d = 0; d < OCTS; d++) mixed[g][d] += scores[g * padded + c] * value[d];
    }
    for (int g = 0; g < GROUPS; g++)
        for (int d = 0; d < OCTS; d++) ((loose *)(out + g * DIM))[d] = mixed[g][d] * shares[g];
}

/* Stores keys and values of one row of a block for a head of them, and puts what it attends to in the place of its queries. */
static void attend_row(const Step *step, int64_t layer, int64_t row, int64_t head, float *query, const float *key,
                       const float *value, float *scores, int64_t lanes) {
    float asked[GROUPS * DIM], mixed[GROUPS * DIM];
    const int64_t position = step->positions[row], size = step->columns * DIM, group = head * GROUPS * DIM * lanes;
    const int64_t own = (row * step->key_heads + head) * size, other = (step->origins[row] * step->key_heads + head) * size;
    float *keys = step->states[2 * layer], *values = step->states[2 * layer + 1];
    take(key + head * DIM * lanes, keys + own + position * DIM, DIM, lanes);
    take(value + head * DIM * lanes, values + own + position * DIM, DIM, lanes);
    take(query + group, asked, GROUPS * DIM, lanes);
    for (int i = 0; i < GROUPS * DIM; i++) asked[i] *= (float)step->scale;
    attend(asked, keys + own, values + own, keys + other, values + other, step->shared[row] & ~7, mixed, scores, position + 1);
    put(mixed, query + group, GROUPS * DIM, lanes);
}

/* Part `part` of `parts` of `size`, in whole units: its first, and with the next part its end. */
static int64_t begin(int64_t size, int64_t unit, int64_t part, int64_t parts) {
    return MIN(size, (size + unit - 1) / unit * part / parts * unit);
}

/* The step of the `count` rows from `start` on, in `width` vectors: a part of it in `own` scratch and that of all parts. */
static void decode_block(const Step *step, int64_t start, int64_t count, int width, vec *own, vec *scratch, int part, int parts) {
#define FIRST(size, unit) begin(size, unit, part, parts)
#define END(size, unit) begin(size, unit, part + 1, parts)
#define MULTIPLY(weights, x, out, size, unit, depth, adds) \
    multiply(step, weights, x, out, FIRST(size, unit), END(size, unit), depth, width, adds)
#define TURN(heads, size, weight) \
    turn(heads + FIRST(size, DIM) * width, heads + END(size, DIM) * width, weight, cosine, sine, width, step->epsilon)
#define WAIT if (parts > 1) { _Pragma("omp barrier") }
    const int64_t lanes = width * LANES, hidden = step->hidden, inner = step->inner, shared = step->key_heads * DIM;
    const int64_t all = GROUPS * shared;
    vec *x = scratch, *query = x + hidden * width, *key = query + all * width, *value = key + shared * width;
    vec *gate = value + shared * width, *up = gate + inner * width, *mine = own + (up - scratch) + inner * width;
    vec *normed = mine, *cosine = normed + hidden * width, *sine = cosine + DIM / 2 * width, *pairs = sine + DIM / 2 * width;
    float *scores = (float *)(pairs + (hidden + all + inner) / 2 * width);
    if (part == 0) memset(x, 0, hidden * width * sizeof *x); /* lanes without a row: whatever is finite */
    memset(cosine, 0, DIM * width * sizeof *cosine);
    for (int64_t r = 0; r < count; r++) {
        if (part == 0) put(step->embeddings + step->tokens[start + r] * hidden, (float *)x + r, hidden, lanes);
        put(step->cosines + step->positions[start + r] * (DIM / 2), (float *)cosine + r, DIM / 2, lanes);
        put(step->sines + step->positions[start + r] * (DIM / 2), (float *)sine + r, DIM / 2, lanes);
    }
    WAIT
    for (int64_t layer = 0; layer < step->layers; layer++) {
        const void *const *weights = step->weights + 11 * layer;
        normalize(x, weights[0], normed, hidden, width, step->epsilon);
        const vec *given = prepare(step, normed, hidden, width, pairs);
        MULTIPLY(weights[1], given, query, all, DIM, hidden, 0);
        MULTIPLY(weights[2], given, key, shared, DIM, hidden, 0);
        /* from the other end, so that parts have equal numbers of heads in all */
        multiply(step, weights[3], given, value, shared - END(shared, DIM), shared - FIRST(shared, DIM), hidden, width, 0);
        TURN(query, all, weights[4]);
        TURN(key, shared, weights[5]);
        WAIT
        for (int64_t h = 0; h < step->key_heads; h++)
            for (int64_t r = FIRST(count, 1); r < END(count, 1); r++) /* next to each other, as rows of a prompt read the same */
                attend_row(step, layer, start + r, h, (float *)query + r, (float *)key + r, (float *)value + r, scores, lanes);
        WAIT
        MULTIPLY(weights[6], prepare(step, query, all, width, pairs), x, hidden, TILE, all, 1);
        WAIT
        normalize(x, weights[7], normed, hidden, width, step->epsilon);
        given = prepare(step, normed, hidden, width, pairs);
        MULTIPLY(weights[8], given, gate, inner, TILE, hidden, 0);
        MULTIPLY(weights[9], given, up, inner, TILE, hidden, 0);
        for (int64_t i = FIRST(inner, TILE) * width; i < END(inner, TILE) * width; i++)
            gate[i] = gate[i] / (exponential(-gate[i]) + 1.0f) * up[i];
        WAIT
        MULTIPLY(weights[10], prepare(step, gate, inner, width, pairs), x, hidden, TILE, inner, 1);
        WAIT
    }
    normalize(x, step->norm, normed, hidden, width, step->epsilon);
    const vec *given = prepare(step, normed, hidden, width, pairs);
    vec *logits = own + (gate - scratch);
    const int64_t each = (step->low ? 2 : 4) * hidden;
    const int64_t size = MIN(inner / TILE, 4) * TILE; /* of a block of the vocabulary, whose logits stay in the nearest cache */
    for (int64_t o = FIRST(step->vocab, TILE); o < END(step->vocab, TILE); o += size) {
        const int64_t end = MIN(size, END(step->vocab, TILE) - o);
        multiply(step, (const char *)step->head + o * each, given, logits, 0, end, hidden, width, 0);
        for (int64_t r = 0; r < count; r++) take((float *)logits + r, step->logits + (start + r) * step->vocab + o, end, lanes);
    }
    WAIT /* for what the others still read */
}

/* The room in numbers that `decode` needs for each thread. */
int64_t find_room(const Step *step) {
    const int64_t shared = step->key_heads * DIM, all = GROUPS * shared, width = step->large ? MOST : WIDTH;
    const int64_t sizes = 2 * step->hidden + all + 2 * shared + 2 * step->inner + DIM + (step->hidden + all + step->inner) / 2;
    return sizes * width * LANES + GROUPS * (step->columns + 16) / 16 * 16;
}

/* Thread `part` of `parts`. */
static void decode_part(const Step *step, int64_t part, int64_t parts) {
    const int64_t vectors = (step->rows + LANES - 1) / LANES, share = (vectors + parts - 1) / parts;
    const int64_t block = (step->large ? MIN(vectors, MOST) : MIN(share, WIDTH)) * LANES, skipped = step->large ? 0 : part;
    vec *own = (vec *)(step->scratch + part * step->room), *first = (vec *)step->scratch;
    if (step->low) open_tiles();
    for (int64_t start = skipped * block; start < step->rows; start += (step->large ? 1 : parts) * block) {
        const int64_t count = MIN(block, step->rows - start), width = (count + LANES - 1) / LANES;
        if (step->large) decode_block(step, start, count, width, own, first, part, parts);
        else decode_block(step, start, count, width, own, own, 0, 1);
    }
    if (step->low) _tile_release();
}

void decode(const Step *step) {
#ifdef _OPENMP
#pragma omp parallel num_threads(step->threads)
    decode_part(step, omp_get_thread_num(), omp_get_num_threads());
#else
    decode_part(step, 0, 1);
#endif
}

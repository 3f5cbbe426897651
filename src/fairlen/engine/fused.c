/* One decode step of a small Qwen3 model in float32: a token a row in, logits out, keys and values of it stored.
 *
 * Rows lie side by side in vectors, activations as [size][width] of them, so that weights are read as they are, a number at a
 * time for all rows, and every row has arithmetic of its own: its logits do not depend on the other rows, to the bit.
 * Built for one shape of heads: DIM numbers, a multiple of 8, and GROUPS heads that share keys and values.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

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
#define WIDTH 2 /* vectors of a block of rows; HEIGHT * WIDTH sums of a matrix product are in registers */
#define OCTS (DIM / 8)
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float oct __attribute__((vector_size(32)));
typedef oct loose __attribute__((aligned(4)));
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t places __attribute__((vector_size(32)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

/* Argument of `decode`; weights of each layer: input norm, q, k, v, q norm, k norm, o, norm, gate, up, down. */
typedef struct {
    const int64_t *tokens, *positions; /* [rows] */
    float *logits;                     /* [rows, vocab] */
    const float *cosines, *sines;      /* [columns, DIM / 2] */
    const float *embeddings, *norm, *head;
    const float *const *weights; /* [layers, 11] */
    float *const *states;        /* [layers, 2]: keys and values [.., key heads, columns, DIM] */
    float *scratch;              /* [threads, room], of whole vectors */
    int64_t rows, layers, hidden, key_heads, inner, vocab, columns, room, threads;
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

/* out [height][width] = or += weights [height, depth] . x [depth][width] */
INLINE void multiply_tile(const float *weights, const vec *x, vec *out, int64_t depth, int height, int width, int adds) {
    vec sums[HEIGHT][WIDTH];
    UNROLL for (int h = 0; h < height; h++) UNROLL for (int v = 0; v < width; v++) sums[h][v] = (vec){0};
    for (int64_t i = 0; i < depth; i++)
        UNROLL for (int h = 0; h < height; h++)
            UNROLL for (int v = 0; v < width; v++) sums[h][v] += weights[h * depth + i] * x[i * width + v];
    UNROLL for (int h = 0; h < height; h++)
        UNROLL for (int v = 0; v < width; v++) out[h * width + v] = adds ? out[h * width + v] + sums[h][v] : sums[h][v];
}

INLINE void multiply_rows(const float *weights, const vec *x, vec *out, int64_t size, int64_t depth, int width, int adds) {
    int64_t o = 0;
    for (; o + HEIGHT <= size; o += HEIGHT) multiply_tile(weights + o * depth, x, out + o * width, depth, HEIGHT, width, adds);
    for (; o < size; o++) multiply_tile(weights + o * depth, x, out + o * width, depth, 1, width, adds);
}

/* out [size][width] = or += weights [size, depth] . x [depth][width] */
static void multiply(const float *weights, const vec *x, vec *out, int64_t size, int64_t depth, int width, int adds) {
    if (width == 1) multiply_rows(weights, x, out, size, depth, 1, adds);
    else multiply_rows(weights, x, out, size, depth, WIDTH, adds);
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

/* Turns heads [count][DIM][width] by the angles [DIM / 2][width] of their positions. */
static void rotate(vec *heads, const vec *cosine, const vec *sine, int64_t count, int width) {
    const int64_t half = DIM / 2 * width;
    for (vec *head = heads; head < heads + count * 2 * half; head += 2 * half)
        for (int64_t i = 0; i < half; i++) {
            const vec one = head[i], other = head[i + half];
            head[i] = one * cosine[i] - other * sine[i];
            head[i + half] = other * cosine[i] + one * sine[i];
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

/* query [GROUPS, DIM] over keys, values [count, DIM]: out [GROUPS, DIM]; scores [GROUPS, padded] to work in. */
static void attend(const float *query, const float *keys, const float *values, float *out, float *scores, int64_t count) {
    const int64_t padded = (count + 15) & ~15;
    oct asked[GROUPS][OCTS], mixed[GROUPS][OCTS];
    memcpy(asked, query, sizeof asked);
    memset(mixed, 0, sizeof mixed);
    for (int64_t c = 0; c < count; c += 8) {
        oct products[GROUPS][8];
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
    for (int64_t c = 0; c < count; c++)
        UNROLL for (int g = 0; g < GROUPS; g++)
            UNROLL for (int d = 0; d < OCTS; d++) mixed[g][d] += scores[g * padded + c] * ((const loose *)(values + c * DIM))[d];
    for (int g = 0; g < GROUPS; g++)
        for (int d = 0; d < OCTS; d++) ((loose *)(out + g * DIM))[d] = mixed[g][d] * shares[g];
}

/* Stores keys and values of one row of a block, and puts what it attends to in the place of its query. */
static void attend_row(const Step *step, int64_t layer, int64_t row, float *query, const float *key, const float *value,
                       float *scores, int64_t lanes) {
    float asked[GROUPS * DIM], mixed[GROUPS * DIM];
    const int64_t position = step->positions[row];
    for (int64_t h = 0; h < step->key_heads; h++) {
        const int64_t begin = (row * step->key_heads + h) * step->columns * DIM, group = h * GROUPS * DIM * lanes;
        float *keys = step->states[2 * layer] + begin, *values = step->states[2 * layer + 1] + begin;
        take(key + h * DIM * lanes, keys + position * DIM, DIM, lanes);
        take(value + h * DIM * lanes, values + position * DIM, DIM, lanes);
        take(query + group, asked, GROUPS * DIM, lanes);
        for (int i = 0; i < GROUPS * DIM; i++) asked[i] *= (float)step->scale;
        attend(asked, keys, values, mixed, scores, position + 1);
        put(mixed, query + group, GROUPS * DIM, lanes);
    }
}

/* The step of the `count` rows from `start` on, in `width` vectors. */
static void decode_block(const Step *step, int64_t start, int64_t count, int width, vec *scratch) {
    const int64_t lanes = width * LANES, hidden = step->hidden, inner = step->inner, shared = step->key_heads * DIM;
    vec *x = scratch, *normed = x + hidden * width, *query = normed + hidden * width, *key = query + GROUPS * shared * width;
    vec *value = key + shared * width, *cosine = value + shared * width, *sine = cosine + DIM / 2 * width;
    vec *gate = sine + DIM / 2 * width, *up = gate + inner * width;
    float *scores = (float *)(up + inner * width);
    memset(x, 0, hidden * width * sizeof *x); /* lanes without a row: whatever is finite */
    for (int64_t r = 0; r < count; r++) {
        put(step->embeddings + step->tokens[start + r] * hidden, (float *)x + r, hidden, lanes);
        put(step->cosines + step->positions[start + r] * (DIM / 2), (float *)cosine + r, DIM / 2, lanes);
        put(step->sines + step->positions[start + r] * (DIM / 2), (float *)sine + r, DIM / 2, lanes);
    }
    for (int64_t layer = 0; layer < step->layers; layer++) {
        const float *const *weights = step->weights + 11 * layer;
        normalize(x, weights[0], normed, hidden, width, step->epsilon);
        multiply(weights[1], normed, query, GROUPS * shared, hidden, width, 0);
        multiply(weights[2], normed, key, shared, hidden, width, 0);
        multiply(weights[3], normed, value, shared, hidden, width, 0);
        for (vec *head = query; head < key; head += DIM * width) normalize(head, weights[4], head, DIM, width, step->epsilon);
        for (vec *head = key; head < value; head += DIM * width) normalize(head, weights[5], head, DIM, width, step->epsilon);
        rotate(query, cosine, sine, GROUPS * step->key_heads, width);
        rotate(key, cosine, sine, step->key_heads, width);
        for (int64_t r = 0; r < count; r++)
            attend_row(step, layer, start + r, (float *)query + r, (float *)key + r, (float *)value + r, scores, lanes);
        multiply(weights[6], query, x, hidden, GROUPS * shared, width, 1);
        normalize(x, weights[7], normed, hidden, width, step->epsilon);
        multiply(weights[8], normed, gate, inner, hidden, width, 0);
        multiply(weights[9], normed, up, inner, hidden, width, 0);
        for (int64_t i = 0; i < inner * width; i++) gate[i] = gate[i] / (exponential(-gate[i]) + 1.0f) * up[i];
        multiply(weights[10], gate, x, hidden, inner, width, 1);
    }
    normalize(x, step->norm, normed, hidden, width, step->epsilon);
    for (int64_t o = 0; o < step->vocab; o += inner) { /* a part of the vocabulary that there is room for */
        const int64_t size = step->vocab - o < inner ? step->vocab - o : inner;
        multiply(step->head + o * hidden, normed, gate, size, hidden, width, 0);
        for (int64_t r = 0; r < count; r++) take((float *)gate + r, step->logits + (start + r) * step->vocab + o, size, lanes);
    }
}

/* The room in numbers that `decode` needs for each thread. */
int64_t find_room(const Step *step) {
    const int64_t shared = step->key_heads * DIM, sizes = 2 * step->hidden + (GROUPS + 2) * shared + DIM + 2 * step->inner;
    return sizes * WIDTH * LANES + GROUPS * (step->columns + 16) / 16 * 16;
}

void decode(const Step *step) {
    const int64_t vectors = (step->rows + LANES - 1) / LANES, share = (vectors + step->threads - 1) / step->threads;
    const int64_t block = (share < WIDTH ? share : WIDTH) * LANES;
#pragma omp parallel for num_threads(step->threads) schedule(static)
    for (int64_t part = 0; part < step->threads; part++)
        for (int64_t start = part * block; start < step->rows; start += step->threads * block) {
            const int64_t count = step->rows - start < block ? step->rows - start : block;
            decode_block(step, start, count, (count + LANES - 1) / LANES, (vec *)(step->scratch + part * step->room));
        }
}

/* One query a row over the columns that the row has: out = softmax(scale * query . keys) . values.
 *
 * Built for one shape: REAL with EXP and TANH, GROUPS heads that share keys and values (which are read once for all of them),
 * DIM and VALUE_DIM. Strides count elements; a head's columns lie back to back. `window` columns end at the position;
 * `softcap` <= 0 is none.
 */
#include <math.h>
#include <stdint.h>

/* Turns `count` scores into weights that sum to one. */
static void normalize(REAL *restrict scores, int64_t count, REAL softcap) {
    REAL top = scores[0], sum = 0;
    if (softcap > 0)
        for (int64_t c = 0; c < count; c++) scores[c] = softcap * TANH(scores[c] / softcap);
    for (int64_t c = 0; c < count; c++) top = scores[c] > top ? scores[c] : top;
    for (int64_t c = 0; c < count; c++) scores[c] = EXP(scores[c] - top);
    for (int64_t c = 0; c < count; c++) sum += scores[c];
    for (int64_t c = 0; c < count; c++) scores[c] /= sum;
}

/* query [GROUPS, DIM], keys [count, DIM], values [count, VALUE_DIM], out [GROUPS, VALUE_DIM]; scores [GROUPS, count] to work in. */
static void attend_head(const REAL *restrict query, const REAL *restrict keys, const REAL *restrict values,
                        REAL *restrict out, REAL *restrict scores, int64_t count, REAL scale, REAL softcap) {
    REAL mixed[GROUPS][VALUE_DIM] = {{0}};
    for (int64_t c = 0; c < count; c++)
        for (int g = 0; g < GROUPS; g++) {
            REAL dot = 0;
            for (int d = 0; d < DIM; d++) dot += query[g * DIM + d] * keys[c * DIM + d];
            scores[g * count + c] = scale * dot;
        }
    for (int g = 0; g < GROUPS; g++) normalize(scores + g * count, count, softcap);
    for (int64_t c = 0; c < count; c++)
        for (int g = 0; g < GROUPS; g++)
            for (int d = 0; d < VALUE_DIM; d++) mixed[g][d] += scores[g * count + c] * values[c * VALUE_DIM + d];
    for (int g = 0; g < GROUPS; g++)
        for (int d = 0; d < VALUE_DIM; d++) out[g * VALUE_DIM + d] = mixed[g][d];
}

/* query [rows, heads, DIM], out [rows, heads, VALUE_DIM], positions [rows], scratch [threads, GROUPS, columns];
 * nothing is read beyond `columns`. */
void attend(const REAL *query, const REAL *keys, const REAL *values, REAL *out, const int64_t *positions, REAL *scratch,
            int64_t rows, int64_t key_heads, int64_t key_row_stride, int64_t key_head_stride, int64_t value_row_stride,
            int64_t value_head_stride, int64_t window, int64_t columns, int64_t threads, double scale, double softcap) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; part++)
        for (int64_t i = part; i < rows * key_heads; i += threads) {
            const int64_t row = i / key_heads, head = i % key_heads;
            const int64_t end = positions[row] < columns ? positions[row] + 1 : columns;
            const int64_t start = end > window ? end - window : 0;
            attend_head(query + i * GROUPS * DIM, keys + row * key_row_stride + head * key_head_stride + start * DIM,
                        values + row * value_row_stride + head * value_head_stride + start * VALUE_DIM,
                        out + i * GROUPS * VALUE_DIM, scratch + part * GROUPS * columns, end - start, (REAL)scale, (REAL)softcap);
        }
}

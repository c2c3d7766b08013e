/* Scaled dot-product attention with its gradients in C: reads test vectors and writes its answers.

   attention-parity export --case 'DotProductAttention-[!e]*' -o vectors    # all but extended memories
   cc -O2 -o attention attention.c -lm    # float32: -DREAL=float; with a planted bug: -DBUG
   ./attention answers.safetensors $(find vectors -name float64.safetensors)
   attention-parity compare answers.safetensors --vectors vectors

   A safetensors file is the length of the header (8 bytes), the header (JSON), and the arrays in C order. The machine
   has to be little-endian. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef REAL
#define REAL double
#endif
typedef REAL real;

/* An array seen with four axes: batch, heads, rows, columns. Those that it lacks, or of size 1, have stride 0. */
typedef struct {
    const char *axes; /* the axes that it has, in its order, as digits */
    const char *data; /* its bytes, and the first letter of its dtype: F64, I64 or BOOL */
    char dtype;
    long size[4], stride[4], count;
    real *out; /* its gradient, or an answer */
} Array;

/* The axes of an array of each rank. */
static const char *AXES[] = {"", "", "23", "023", "0123"}, *TIME_MAJOR[] = {"", "", "", "203"};
static const char *LENS[] = {"", "0", "02"};

static Array array(const char *axes, const long size[4]) {
    Array a = {.axes = axes, .size = {1, 1, 1, 1}, .count = 1};
    for (long i = (long)strlen(axes) - 1; i >= 0; i--) {
        int axis = axes[i] - '0';
        a.size[axis] = size[axis];
        a.stride[axis] = size[axis] == 1 ? 0 : a.count;
        a.count *= size[axis];
    }
    a.out = calloc(a.count + 1, sizeof(real));
    return a;
}

static long at(const Array *a, long b, long h, long i, long j) {
    return b * a->stride[0] + h * a->stride[1] + i * a->stride[2] + j * a->stride[3];
}

static real get(const Array *a, long b, long h, long i, long j, real missing) {
    long n = at(a, b, h, i, j);
    if (!a->data) return missing;
    if (a->dtype == 'F') return ((const double *)a->data)[n];
    return a->dtype == 'I' ? ((const int64_t *)a->data)[n] : a->data[n];
}

static char *contents(const char *path, const char *suffix) {
    char name[4096];
    snprintf(name, sizeof name, "%.*s%s", (int)(strrchr(path, '.') - path), path, suffix);
    FILE *file = fopen(name, "rb");
    if (!file || fseek(file, 0, SEEK_END)) perror(name), exit(2);
    long length = ftell(file);
    char *data = calloc(length + 1, 1);
    rewind(file);
    if (fread(data, 1, length, file) != (size_t)length) perror(name), exit(2);
    fclose(file);
    return data;
}

/* The array of that name in a safetensors file; without data if there is none. */
static Array find(const char *file, const char *name, const char **axes_of_rank) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":{", name);
    const char *entry = strstr(file + 8, key);
    if (!entry) return (Array){0};
    long given[4], size[4] = {1, 1, 1, 1};
    int rank = 0;
    char *next = strstr(entry, "\"shape\":") + 8;
    while (*next != ']') given[rank++] = strtol(next + 1, &next, 10);
    for (int i = 0; i < rank; i++) size[axes_of_rank[rank][i] - '0'] = given[i];
    Array a = array(axes_of_rank[rank], size);
    a.dtype = strstr(entry, "\"dtype\":")[9];
    a.data = file + 8 + *(uint64_t *)file + strtol(strstr(entry, "\"data_offsets\":") + 16, NULL, 10);
    return a;
}

static char *header;
static FILE *body;

static void answer(const char *path, const char *kind, const char *name, const Array *a) {
    const char *start = strrchr(path, '/'); /* the id of the vector is its path, from the folder of its case on */
    while (start > path && start[-1] != '/') start--;
    size_t used = strlen(header);
    header = realloc(header, used + strlen(start) + 512);
    char *end = header + used;
    end += sprintf(end, "%s\"%.*s/%s/%s\":{\"dtype\":\"%s\",\"shape\":[", used > 1 ? "," : "",
                   (int)(strrchr(start, '.') - start), start, kind, name, sizeof(real) == 8 ? "F64" : "F32");
    for (const char *x = a->axes; *x; x++) end += sprintf(end, "%s%ld", x > a->axes ? "," : "", a->size[*x - '0']);
    long offset = ftell(body);
    sprintf(end, "],\"data_offsets\":[%ld,%ld]}", offset, offset + a->count * (long)sizeof(real));
    fwrite(a->out, sizeof(real), a->count, body);
}

static double number(const char *json, const char *key, double missing) { /* null, which is no number, is missing */
    const char *value = strstr(json, key) + strlen(key);
    char *end;
    double found = strtod(value, &end);
    return end > value ? found : missing;
}

static void attend(const char *path) {
    char *file = contents(path, ".safetensors"), *json = contents(path, ".json");
    const char **axes = strstr(json, "\"time_major\": true") ? TIME_MAJOR : AXES;
    Array q = find(file, "inputs/queries", axes), k = find(file, "inputs/keys", axes);
    Array v = find(file, "inputs/values", axes);
    Array lens = find(file, "inputs/valid_lens", LENS), mask = find(file, "inputs/mask", AXES);
    Array bias = find(file, "inputs/bias", AXES), drop = find(file, "inputs/dropout_mask", AXES);
    Array dc = find(file, "cotangents/context", axes), dw = find(file, "cotangents/weights", AXES);
    int own_q = q.data != NULL, own_v = v.data != NULL; /* otherwise they are the same array as the keys */
    if (!own_q) q = k;
    if (!own_v) v = k;
    long heads = q.size[1], queries = q.size[2], keys = k.size[2];
    Array context = array(q.axes, (long[]){q.size[0], heads, queries, v.size[3]});
    Array weights = array(AXES[strlen(q.axes)], (long[]){q.size[0], heads, queries, keys});
    real scale = number(json, "\"scale\": ", 1 / sqrt(q.size[3])), cap = number(json, "\"softcap\": ", 0);
    real *s = calloc(keys + 1, sizeof(real)), *t = calloc(keys + 1, sizeof(real)), *g = calloc(keys + 1, sizeof(real));
    char *open = calloc(keys + 1, 1);

    for (long row = 0; row < q.size[0] * heads * queries; row++) {
        long i = row % queries, h = row / queries % heads, b = row / queries / heads;
        long kh = h * k.size[1] / heads; /* key heads are shared by groups of query heads */
        real *w = weights.out + at(&weights, b, h, i, 0), most = -INFINITY;
        double total = 0, mean = 0; /* in float, sums of 1,000 terms lose too much */
        long step = weights.stride[3];
        for (long j = 0; j < keys; j++) {
            open[j] = j < get(&lens, b, h, i, 0, keys) && get(&mask, b, h, i, j, 1);
            open[j] = open[j] && get(&bias, b, h, i, j, 0) > -INFINITY;
            s[j] = 0;
            for (long c = 0; open[j] && c < q.size[3]; c++) s[j] += get(&q, b, h, i, c, 0) * get(&k, b, kh, j, c, 0);
            t[j] = cap ? tanh(scale * s[j] / cap) : 0;
            s[j] = (cap ? cap * t[j] : scale * s[j]) + (open[j] ? get(&bias, b, h, i, j, 0) : 0);
#ifdef BUG
            if (!open[j]) s[j] = -1e9, open[j] = 1;
#endif
            if (open[j] && s[j] > most) most = s[j];
        }
        /* Weights and context, and what flows back to each weight. */
        for (long j = 0; j < keys; j++) if (open[j]) total += w[j * step] = exp(s[j] - most);
        for (long j = 0; j < keys; j++) if (open[j]) {
            w[j * step] /= total;
            real factor = get(&drop, b, h, i, j, 1), flow = 0;
            for (long c = 0; c < v.size[3]; c++) {
                context.out[at(&context, b, h, i, c)] += factor * w[j * step] * get(&v, b, kh, j, c, 0);
                if (!dc.data) continue;
                flow += get(&dc, b, h, i, c, 0) * get(&v, b, kh, j, c, 0);
                v.out[at(&v, b, kh, j, c)] += factor * w[j * step] * get(&dc, b, h, i, c, 0);
            }
            if (drop.data) drop.out[at(&drop, b, h, i, j)] += flow * w[j * step];
            g[j] = factor * flow + get(&dw, b, h, i, j, 0);
            mean += w[j * step] * g[j];
        }
        /* The softmax is invariant to a shift of a row: its gradient is that of the weights without their mean. */
        for (long j = 0; j < keys; j++) if (open[j]) {
            real ds = w[j * step] * (g[j] - mean);
            if (bias.data) bias.out[at(&bias, b, h, i, j)] += ds;
            ds *= scale * (1 - t[j] * t[j]);
            for (long c = 0; c < q.size[3]; c++) {
                q.out[at(&q, b, h, i, c)] += ds * get(&k, b, kh, j, c, 0);
                k.out[at(&k, b, kh, j, c)] += ds * get(&q, b, h, i, c, 0);
            }
        }
    }
    answer(path, "outputs", "context", &context);
    if (strstr(json, "\"need_weights\": true")) answer(path, "outputs", "weights", &weights);
    if (!dc.data) return;
    answer(path, "gradients", "keys", &k);
    if (own_q) answer(path, "gradients", "queries", &q);
    if (own_v) answer(path, "gradients", "values", &v);
    if (bias.data) answer(path, "gradients", "bias", &bias);
    if (drop.data) answer(path, "gradients", "dropout_mask", &drop);
}

int main(int count, char **paths) {
    int usable = count > 2;
    for (int i = 2; i < count; i++) usable &= strstr(paths[i], ".safetensors") && strchr(paths[i], '/');
    FILE *out = usable ? fopen(paths[1], "wb") : NULL;
    if (!out) fprintf(stderr, "usage: %s ANSWERS CASE/DTYPE.safetensors...\n", paths[0]), exit(2);
    header = strcpy(malloc(2), "{");
    body = tmpfile();
    for (int i = 2; i < count; i++) attend(paths[i]);
    uint64_t length = strlen(header) + 1;
    fwrite(&length, sizeof length, 1, out);
    fprintf(out, "%s}", header);
    rewind(body);
    for (int byte; (byte = getc(body)) != EOF;) putc(byte, out);
    return fclose(out) != 0;
}

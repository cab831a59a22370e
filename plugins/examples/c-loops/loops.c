/* A backend for Meganeura in plain C: loops over elements, in double precision, rounded when they are stored.
 *
 *     cc -std=c11 -O2 -shared -fPIC -I ../../abi/include loops.c -lm -o libloops.so
 *     MEGANEURA_PLUGINS=$PWD/libloops.so meganeura train digits --device loops
 *
 * It has kernels for what multilayer perceptrons and transformers come down to, and refuses the rest (convolutions,
 * pooling, sorting), which docs/write-a-backend.md says how to add.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "meganeura_plugin.h"

#define MOST_AXES 16

const char meganeura_plugin_manifest[] = "name = \"loops\"\n"
                                         "version = \"0.1.0\"\n"
                                         "abi = \"1.0\"\n"
                                         "description = \"Plain loops in C\"\n";

/* ---- statuses ---------------------------------------------------------------------------------------------------- */

/* A status with room for its text; the host gives it back to status_free. */
static MgnStatus *failure(uint32_t code, const char *message) {
    MgnStatus *s = calloc(1, sizeof *s + strlen(message) + 1);
    if (!s)
        abort(); /* There is not even memory to say so. */
    s->struct_size = sizeof *s;
    s->code = code;
    s->message = strcpy((char *)(s + 1), message);
    return s;
}

static void status_free(MgnStatus *s) { free(s); }

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static int is_float(uint32_t dtype) { return dtype <= MGN_DTYPE_BF16; }

static uint32_t width(uint32_t dtype) { return dtype == MGN_DTYPE_F16 || dtype == MGN_DTYPE_BF16 ? 2 : 4; }

static double half_value(uint16_t h) {
    int exponent = (h >> 10) & 31, mantissa = h & 1023;
    double v = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

static uint16_t half_bits(double v) {
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    v = fabs(v);
    if (isnan(v))
        return 0x7e00;
    int exponent;
    frexp(v, &exponent);
    int unit = exponent - 11 < -24 ? -24 : exponent - 11; /* Of the last place, as a power of two. */
    double rounded = ldexp(rint(ldexp(v, -unit)), unit);
    if (rounded >= 65520 || isinf(v))
        return sign | 0x7c00;
    /* With the units of the smallest numbers, bits are what they count; each power of two adds a step of 1024. */
    frexp(rounded, &exponent);
    if (rounded < ldexp(1, -14))
        return sign | (uint16_t)ldexp(rounded, 24);
    return sign | (uint16_t)(((exponent + 14) << 10) + (int)(ldexp(rounded, 11 - exponent) - 1024));
}

/* Integers are read as such, too: a double holds each of them. */
static double load(const void *data, uint32_t dtype, uint64_t i) {
    switch (dtype) {
    case MGN_DTYPE_F16:
        return half_value(((const uint16_t *)data)[i]);
    case MGN_DTYPE_BF16: {
        uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }
    case MGN_DTYPE_U32:
        return ((const uint32_t *)data)[i];
    case MGN_DTYPE_I32:
        return ((const int32_t *)data)[i];
    default:
        return ((const float *)data)[i];
    }
}

static void store(void *data, uint32_t dtype, uint64_t i, double v) {
    switch (dtype) {
    case MGN_DTYPE_F16:
        ((uint16_t *)data)[i] = half_bits(v);
        break;
    case MGN_DTYPE_BF16: {
        float f = (float)v;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (isnan(f))
            bits |= 0x400000;
        else
            bits += 0x7fff + ((bits >> 16) & 1);
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        break;
    }
    case MGN_DTYPE_U32:
    case MGN_DTYPE_I32:
        ((uint32_t *)data)[i] = (uint32_t)(int64_t)v;
        break;
    default:
        ((float *)data)[i] = (float)v;
    }
}

/* ---- executables ------------------------------------------------------------------------------------------------- */

typedef struct {
    MgnPlan *plan;  /* A copy: the host keeps none. */
    char *arena;    /* Where buffers have their places. */
    char *saved;    /* What exposed buffers held when the step began, one after the other. */
    uint64_t fault[3];
} Loops;

/* A tensor as a kernel sees it. */
typedef struct {
    void *data;
    uint32_t dtype, rank;
    const int64_t *dims;
    uint64_t count;
} Tensor;

static Tensor tensor(Loops *e, MgnRange range, uint32_t i) {
    const MgnOperand *o = mgn_operand(e->plan, range, i);
    Tensor t = {e->arena + mgn_buffer(e->plan, o->buffer)->offset, o->dtype, o->dims.count,
                mgn_integers(e->plan, o->dims), mgn_elements(e->plan, o)};
    return t;
}

static void strides_of(const Tensor *t, int64_t *strides) {
    int64_t step = 1;
    for (uint32_t k = t->rank; k-- > 0; step *= t->dims[k])
        strides[k] = step;
}

/* Strides with which a tensor is read at the places of a larger one that it broadcasts to. */
static void broadcast(const Tensor *t, const Tensor *to, int64_t *strides) {
    int64_t own[MOST_AXES];
    strides_of(t, own);
    uint32_t missing = to->rank - t->rank;
    for (uint32_t k = 0; k < to->rank; k++)
        strides[k] = k < missing || t->dims[k - missing] == 1 ? 0 : own[k - missing];
}

/* The place, by strides, of the element that is number i in row-major order of the dimensions. */
static int64_t place(uint64_t i, uint32_t rank, const int64_t *dims, const int64_t *strides) {
    int64_t at = 0;
    for (uint32_t k = rank; k-- > 0; i /= (uint64_t)dims[k])
        at += (int64_t)(i % (uint64_t)dims[k]) * strides[k];
    return at;
}

static const char *const KERNELS[] = {
    "core.log2",    "core.exp2",      "core.sin",       "core.reciprocal",    "core.sqrt",        "core.add",
    "core.mul",     "core.mod",       "core.less_than", "core.div",           "core.pow",         "core.equal",
    "core.select",  "core.bit_and",   "core.cast",      "core.stop_gradient", "core.shift_left",  "core.shift_right",
    "core.reshape", "core.expand",    "core.permute",   "core.slice",         "core.pad",         "core.concat",
    "core.assign",  "core.sum",       "core.gather",    "core.max_reduce",    "core.scatter_add", "core.matmul",
    "core.argmax",  "core.random_bits",
    "core.take_along_axis",           "core.put_along_axis",
};
enum {
    LOG2, EXP2, SIN, RECIPROCAL, SQRT, ADD, MUL, MOD, LESS_THAN, DIV, POW, EQUAL, SELECT, BIT_AND, CAST, STOP_GRADIENT,
    SHIFT_LEFT, SHIFT_RIGHT, RESHAPE, EXPAND, PERMUTE, SLICE, PAD, CONCAT, ASSIGN, SUM, GATHER, MAX_REDUCE, SCATTER_ADD,
    MATMUL, ARGMAX, RANDOM_BITS, TAKE, PUT, KERNEL_COUNT
};

static int kernel_of(const MgnPlan *p, const MgnDispatch *d) {
    for (int k = 0; k < KERNEL_COUNT; k++)
        if (d->version == 1 && mgn_is(p, d->kernel, KERNELS[k]))
            return k;
    return KERNEL_COUNT;
}

/* Integers wrap when they are stored, for which their lowest bits are enough. */
static double of_integers(int kernel, int64_t a, int64_t b) {
    switch (kernel) {
    case ADD:
        return (double)(a + b);
    case MUL:
        return (double)(uint32_t)((uint64_t)a * (uint64_t)b);
    case MOD:
        return b == 0 ? 0 : (double)((a % b + b) % b);
    case DIV:
        return b == 0 ? 0 : (double)(a / b);
    case BIT_AND:
        return (double)(a & b);
    case SHIFT_LEFT:
        return b >= 32 ? 0 : (double)(uint32_t)((uint64_t)a << b);
    case SHIFT_RIGHT:
        return b >= 32 ? 0 : (double)(a >> b);
    default:
        return 0;
    }
}

static double of_numbers(int kernel, double a, double b) {
    switch (kernel) {
    case LOG2:
        return log2(a);
    case EXP2:
        return exp2(a);
    case SIN:
        return sin(a);
    case RECIPROCAL:
        return 1 / a;
    case SQRT:
        return sqrt(a);
    case ADD:
        return a + b;
    case MUL:
        return a * b;
    case MOD: {
        double r = fmod(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    case DIV:
        return a / b;
    case POW:
        return pow(a, b);
    default:
        return a;
    }
}

/* Floats to integers truncate and saturate, and NaN gives 0; integers wrap. */
static double cast(double v, uint32_t from, uint32_t to) {
    if (is_float(to) || !is_float(from))
        return v;
    double least = to == MGN_DTYPE_U32 ? 0 : -2147483648.0, most = to == MGN_DTYPE_U32 ? 4294967295.0 : 2147483647.0;
    return isnan(v) ? 0 : v < least ? least : v > most ? most : trunc(v);
}

static void elementwise(Loops *e, const MgnDispatch *d, int kernel) {
    Tensor y = tensor(e, d->outputs, 0), in[3];
    int64_t strides[3][MOST_AXES];
    for (uint32_t k = 0; k < d->inputs.count; k++) {
        in[k] = tensor(e, d->inputs, k);
        broadcast(&in[k], &y, strides[k]);
    }
    for (uint64_t i = 0; i < y.count; i++) {
        double v[3] = {0, 0, 0};
        for (uint32_t k = 0; k < d->inputs.count; k++)
            v[k] = load(in[k].data, in[k].dtype, (uint64_t)place(i, y.rank, y.dims, strides[k]));
        double r;
        if (kernel == SELECT)
            r = v[0] != 0 ? v[1] : v[2];
        else if (kernel == LESS_THAN)
            r = v[0] < v[1];
        else if (kernel == EQUAL)
            r = v[0] == v[1];
        else if (kernel == CAST)
            r = cast(v[0], in[0].dtype, y.dtype);
        else if (is_float(y.dtype) || kernel == EXPAND || kernel == STOP_GRADIENT)
            r = of_numbers(kernel, v[0], v[1]);
        else
            r = of_integers(kernel, (int64_t)v[0], (int64_t)v[1]);
        store(y.data, y.dtype, i, r);
    }
}

/* Copies x to places of y: element i of the dimensions goes from `from` + by x's strides to `to` + by y's. */
static void copy(Tensor x, Tensor y, uint32_t rank, const int64_t *dims, int64_t from, const int64_t *xs, int64_t to,
                 const int64_t *ys) {
    uint64_t count = 1;
    for (uint32_t k = 0; k < rank; k++)
        count *= (uint64_t)dims[k];
    uint32_t bytes = width(x.dtype);
    for (uint64_t i = 0; i < count; i++)
        memcpy((char *)y.data + (to + place(i, rank, dims, ys)) * bytes,
               (char *)x.data + (from + place(i, rank, dims, xs)) * bytes, bytes);
}

static void movement(Loops *e, const MgnDispatch *d, int kernel) {
    Tensor y = tensor(e, d->outputs, 0), x = tensor(e, d->inputs, 0);
    int64_t xs[MOST_AXES], ys[MOST_AXES], from = 0, to = 0;
    MgnRange a = d->attributes;
    strides_of(&x, xs);
    strides_of(&y, ys);
    if (kernel == PERMUTE) {
        const int64_t *axes = mgn_integers(e->plan, mgn_attribute(e->plan, a, "axes")->list);
        int64_t by[MOST_AXES];
        for (uint32_t k = 0; k < y.rank; k++)
            by[k] = xs[axes[k] < 0 ? axes[k] + x.rank : axes[k]];
        copy(x, y, y.rank, y.dims, 0, by, 0, ys);
    } else if (kernel == SLICE) {
        const int64_t *starts = mgn_integers(e->plan, mgn_attribute(e->plan, a, "starts")->list);
        const int64_t *steps = mgn_integers(e->plan, mgn_attribute(e->plan, a, "steps")->list);
        for (uint32_t k = 0; k < x.rank; k++) {
            from += starts[k] * xs[k];
            xs[k] *= steps[k];
        }
        copy(x, y, y.rank, y.dims, from, xs, 0, ys);
    } else if (kernel == PAD) {
        const int64_t *low = mgn_integers(e->plan, mgn_attribute(e->plan, a, "low")->list);
        const int64_t *interior = mgn_integers(e->plan, mgn_attribute(e->plan, a, "interior")->list);
        double value = mgn_float(e->plan, a, "value", 0);
        for (uint64_t i = 0; i < y.count; i++)
            store(y.data, y.dtype, i, value);
        for (uint32_t k = 0; k < x.rank; k++) {
            to += low[k] * ys[k];
            ys[k] *= interior[k] + 1;
        }
        copy(x, y, x.rank, x.dims, 0, xs, to, ys);
    } else { /* CONCAT */
        int64_t axis = mgn_int(e->plan, a, "axis", 0);
        axis += axis < 0 ? y.rank : 0;
        for (uint32_t k = 0; k < d->inputs.count; k++) {
            x = tensor(e, d->inputs, k);
            strides_of(&x, xs);
            copy(x, y, x.rank, x.dims, 0, xs, to, ys);
            to += x.dims[axis] * ys[axis];
        }
    }
}

static void reduce(Loops *e, const MgnDispatch *d, int kernel) {
    Tensor y = tensor(e, d->outputs, 0), x = tensor(e, d->inputs, 0);
    const MgnAttribute *axes = mgn_attribute(e->plan, d->attributes, "axes");
    int64_t xs[MOST_AXES], kept[MOST_AXES], kept_strides[MOST_AXES], gone[MOST_AXES], gone_strides[MOST_AXES];
    uint32_t kept_rank = 0, gone_rank = 0;
    uint64_t terms = 1;
    strides_of(&x, xs);
    for (uint32_t k = 0; k < x.rank; k++) {
        int is_gone = axes->list.count == 0;
        for (uint32_t j = 0; j < axes->list.count; j++) {
            int64_t axis = mgn_integers(e->plan, axes->list)[j];
            is_gone |= (axis < 0 ? axis + x.rank : axis) == k;
        }
        if (is_gone) {
            gone[gone_rank] = x.dims[k];
            gone_strides[gone_rank++] = xs[k];
            terms *= (uint64_t)x.dims[k];
        } else {
            kept[kept_rank] = x.dims[k];
            kept_strides[kept_rank++] = xs[k];
        }
    }
    double least = is_float(x.dtype) ? -INFINITY : x.dtype == MGN_DTYPE_U32 ? 0 : -2147483648.0;
    for (uint64_t i = 0; i < y.count; i++) {
        int64_t at = place(i, kept_rank, kept, kept_strides);
        double r = kernel == SUM ? 0 : least;
        for (uint64_t j = 0; j < terms; j++) {
            double v = load(x.data, x.dtype, (uint64_t)(at + place(j, gone_rank, gone, gone_strides)));
            if (kernel == SUM)
                r += v;
            else
                r = isnan(v) || isnan(r) ? NAN : v > r ? v : r;
        }
        store(y.data, y.dtype, i, r);
    }
}

/* Both are [o..., n, j...] on one side and [o..., i..., j...] on the other. */
static void by_indices(Loops *e, const MgnDispatch *d, int kernel) {
    Tensor indices = tensor(e, d->inputs, 0), x = tensor(e, d->inputs, 1), y = tensor(e, d->outputs, 0);
    Tensor table = kernel == GATHER ? x : y, list = kernel == GATHER ? y : x;
    int64_t axis = mgn_int(e->plan, d->attributes, "axis", 0);
    axis += axis < 0 ? table.rank : 0;
    uint64_t outer = 1, inner = 1, rows = (uint64_t)table.dims[axis], bytes = width(table.dtype);
    for (uint32_t k = 0; k < table.rank; k++)
        *(k < axis ? &outer : &inner) *= k == axis ? 1 : (uint64_t)table.dims[k];
    const uint32_t *index = indices.data;
    if (kernel == SCATTER_ADD)
        memset(y.data, 0, y.count * bytes);
    for (uint64_t o = 0; o < outer; o++)
        for (uint64_t i = 0; i < indices.count; i++)
            for (uint64_t j = 0; j < inner; j++) {
                uint64_t in_table = (o * rows + index[i]) * inner + j, in_list = (o * indices.count + i) * inner + j;
                if (kernel == GATHER) {
                    memcpy((char *)list.data + in_list * bytes, (char *)table.data + in_table * bytes, bytes);
                } else {
                    double sum = load(y.data, y.dtype, in_table) + load(x.data, x.dtype, in_list);
                    store(y.data, y.dtype, in_table, sum);
                }
            }
}

/* Each element names a place along the axis; all else is where it is. */
static void along_axis(Loops *e, const MgnDispatch *d, int kernel) {
    Tensor indices = tensor(e, d->inputs, kernel == TAKE), y = tensor(e, d->outputs, 0);
    Tensor x = tensor(e, d->inputs, kernel == PUT), whole = kernel == TAKE ? x : y;
    int64_t axis = mgn_int(e->plan, d->attributes, "axis", 0), strides[MOST_AXES];
    axis += axis < 0 ? whole.rank : 0;
    strides_of(&whole, strides);
    int64_t along = strides[axis];
    strides[axis] = 0;
    if (kernel == PUT)
        memset(y.data, 0, y.count * width(y.dtype));
    for (uint64_t i = 0; i < indices.count; i++) {
        int64_t at = place(i, indices.rank, indices.dims, strides) + ((const uint32_t *)indices.data)[i] * along;
        if (kernel == TAKE)
            store(y.data, y.dtype, i, load(x.data, x.dtype, (uint64_t)at));
        else
            store(y.data, y.dtype, (uint64_t)at, load(y.data, y.dtype, (uint64_t)at) + load(x.data, x.dtype, i));
    }
}

static void argmax(Loops *e, const MgnDispatch *d) {
    Tensor x = tensor(e, d->inputs, 0), y = tensor(e, d->outputs, 0);
    int64_t axis = mgn_int(e->plan, d->attributes, "axis", 0), inner = 1;
    axis += axis < 0 ? x.rank : 0;
    for (uint32_t k = (uint32_t)axis + 1; k < x.rank; k++)
        inner *= x.dims[k];
    for (uint64_t i = 0; i < y.count; i++) {
        uint64_t start = i / (uint64_t)inner * (uint64_t)(x.dims[axis] * inner) + i % (uint64_t)inner, best = 0;
        double most = load(x.data, x.dtype, start);
        for (uint64_t j = 1; j < (uint64_t)x.dims[axis]; j++) {
            double v = load(x.data, x.dtype, start + j * (uint64_t)inner);
            if (v > most || (isnan(v) && !isnan(most))) {
                best = j;
                most = v;
            }
        }
        ((uint32_t *)y.data)[i] = (uint32_t)best;
    }
}

static uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* The hash that docs/operators.md names. */
static void random_bits(Loops *e, const MgnDispatch *d) {
    Tensor y = tensor(e, d->outputs, 0);
    uint32_t h = mix(*(uint32_t *)tensor(e, d->inputs, 0).data ^ 0x9e3779b9u);
    h = mix(h ^ (uint32_t)mgn_int(e->plan, d->attributes, "uid", 0) * 0x85ebca6bu);
    h = mix(h ^ *(uint32_t *)tensor(e, d->inputs, 1).data);
    for (uint64_t i = 0; i < y.count; i++)
        ((uint32_t *)y.data)[i] = mix(h ^ (uint32_t)i);
}

static void matmul(Loops *e, const MgnDispatch *d) {
    Tensor a = tensor(e, d->inputs, 0), b = tensor(e, d->inputs, 1), y = tensor(e, d->outputs, 0);
    int ta = (int)mgn_int(e->plan, d->attributes, "transpose_a", 0);
    int tb = (int)mgn_int(e->plan, d->attributes, "transpose_b", 0);
    uint64_t m = (uint64_t)y.dims[y.rank - 2], n = (uint64_t)y.dims[y.rank - 1];
    uint64_t k = (uint64_t)a.dims[a.rank - (ta ? 2 : 1)];
    Tensor batch = {NULL, 0, y.rank - 2, y.dims, 1};
    for (uint32_t i = 0; i < batch.rank; i++)
        batch.count *= (uint64_t)y.dims[i];
    int64_t as[MOST_AXES], bs[MOST_AXES];
    Tensor a_batch = a, b_batch = b;
    a_batch.rank -= 2;
    b_batch.rank -= 2;
    broadcast(&a_batch, &batch, as);
    broadcast(&b_batch, &batch, bs);
    const float *fa = a.data, *fb = b.data;
    float *fy = y.data;
    for (uint64_t t = 0; t < batch.count; t++) {
        const float *pa = fa + (uint64_t)place(t, batch.rank, y.dims, as) * m * k;
        const float *pb = fb + (uint64_t)place(t, batch.rank, y.dims, bs) * k * n;
        for (uint64_t i = 0; i < m; i++)
            for (uint64_t j = 0; j < n; j++) {
                double sum = 0;
                for (uint64_t p = 0; p < k; p++)
                    sum += (double)(ta ? pa[p * m + i] : pa[i * k + p]) * (tb ? pb[j * k + p] : pb[p * n + j]);
                fy[(t * m + i) * n + j] = (float)sum;
            }
    }
}

/* Whether all indices of a dispatch are below their bound. */
static int indices_ok(Loops *e, uint32_t number, const MgnDispatch *d) {
    if (d->index_operand == MGN_NONE)
        return 1;
    Tensor t = tensor(e, d->inputs, d->index_operand);
    for (uint64_t i = 0; i < t.count; i++)
        if (((const uint32_t *)t.data)[i] >= d->index_rows) {
            e->fault[0] = number;
            e->fault[1] = ((const uint32_t *)t.data)[i];
            e->fault[2] = d->index_rows;
            return 0;
        }
    return 1;
}

static void dispatch(Loops *e, const MgnDispatch *d) {
    int kernel = kernel_of(e->plan, d);
    if (kernel == RESHAPE || kernel == ASSIGN) {
        Tensor y = tensor(e, d->outputs, 0), x = tensor(e, d->inputs, kernel == ASSIGN);
        memmove(y.data, x.data, y.count * width(y.dtype));
    } else if (kernel == PERMUTE || kernel == SLICE || kernel == PAD || kernel == CONCAT)
        movement(e, d, kernel);
    else if (kernel == SUM || kernel == MAX_REDUCE)
        reduce(e, d, kernel);
    else if (kernel == GATHER || kernel == SCATTER_ADD)
        by_indices(e, d, kernel);
    else if (kernel == TAKE || kernel == PUT)
        along_axis(e, d, kernel);
    else if (kernel == ARGMAX)
        argmax(e, d);
    else if (kernel == RANDOM_BITS)
        random_bits(e, d);
    else if (kernel == MATMUL)
        matmul(e, d);
    else
        elementwise(e, d, kernel);
}

/* Copies exposed buffers away, or back. */
static void save(Loops *e, int back) {
    char *saved = e->saved;
    for (uint32_t i = 0; i < e->plan->buffers.count; i++) {
        const MgnBuffer *b = mgn_buffer(e->plan, i);
        if (b->flags & MGN_BUFFER_EXPOSED) {
            memcpy(back ? e->arena + b->offset : saved, back ? saved : e->arena + b->offset, b->bytes);
            saved += b->bytes;
        }
    }
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static MgnStatus *device_count(MgnBytes settings, uint32_t *count) {
    (void)settings;
    *count = 1;
    return NULL;
}

static MgnStatus *device_info(MgnBytes settings, uint32_t index, MgnDeviceInfo *info) {
    (void)settings, (void)index;
    info->kind = MGN_DEVICE_CPU;
    info->flags = MGN_DEVICE_UNIFIED;
    info->dtypes = 1u << MGN_DTYPE_F32 | 1u << MGN_DTYPE_F16 | 1u << MGN_DTYPE_BF16 | 1u << MGN_DTYPE_U32 |
                   1u << MGN_DTYPE_I32;
    info->launch_nanos = 100;
    info->bytes_per_second = 1e8;
    info->flops_per_second = info->half_flops_per_second = 5e8;
    strcpy(info->name, "loops in C");
    strcpy(info->kernels, "1");
    return NULL;
}

static MgnStatus *device_open(MgnBytes settings, uint32_t index, MgnDevice **device) {
    (void)settings;
    static char only;
    if (index != 0)
        return failure(MGN_STATUS_FAILED, "there is one device");
    *device = (MgnDevice *)(void *)&only;
    return NULL;
}

static void device_close(MgnDevice *device) { (void)device; }

static int too_long(const MgnPlan *p, MgnRange operands) {
    for (uint32_t i = 0; i < operands.count; i++)
        if (mgn_operand(p, operands, i)->dims.count > MOST_AXES)
            return 1;
    return 0;
}

static const char *missing(const MgnPlan *p, const MgnDispatch *d) {
    int kernel = kernel_of(p, d);
    if (kernel == KERNEL_COUNT)
        return "there is no loop for it";
    if (too_long(p, d->inputs) || too_long(p, d->outputs))
        return "loops go over 16 axes at most";
    if (kernel == MATMUL && mgn_operand(p, d->inputs, 0)->dtype != MGN_DTYPE_F32)
        return "matmuls are computed in f32";
    return NULL;
}

static MgnStatus *device_supports(const MgnDevice *device, MgnBytes call) {
    (void)device;
    if (!mgn_plan_ok(call))
        return failure(MGN_STATUS_INVALID_PLAN, "it is a plan of another version");
    const MgnPlan *p = (const void *)call.data;
    const char *why = missing(p, mgn_dispatch(p, 0));
    return why ? failure(MGN_STATUS_UNSUPPORTED, why) : NULL;
}

static void executable_free(MgnExecutable *executable) {
    Loops *e = (void *)executable;
    free(e->plan);
    free(e->arena);
    free(e->saved);
    free(e);
}

static MgnStatus *device_compile(const MgnDevice *device, MgnBytes plan, MgnExecutable **executable) {
    (void)device;
    if (!mgn_plan_ok(plan))
        return failure(MGN_STATUS_INVALID_PLAN, "it is a plan of another version");
    const MgnPlan *p = (const void *)plan.data;
    for (uint32_t i = 0; i < p->dispatches.count; i++) {
        const char *why = missing(p, mgn_dispatch(p, i));
        if (why) {
            MgnStatus *s = failure(MGN_STATUS_UNSUPPORTED, why);
            s->detail[0] = i;
            return s;
        }
    }
    uint64_t saved = 1;
    for (uint32_t i = 0; i < p->buffers.count; i++)
        if (mgn_buffer(p, i)->flags & MGN_BUFFER_EXPOSED)
            saved += mgn_buffer(p, i)->bytes;
    Loops *e = calloc(1, sizeof *e);
    if (e) {
        e->plan = malloc(plan.len);
        e->arena = calloc(1, p->arena_bytes + 1);
        e->saved = malloc(saved);
    }
    if (!e || !e->plan || !e->arena || !e->saved) {
        if (e)
            executable_free((MgnExecutable *)(void *)e);
        MgnStatus *s = failure(MGN_STATUS_OUT_OF_MEMORY, "there is not enough memory");
        s->detail[0] = p->arena_bytes;
        return s;
    }
    memcpy(e->plan, p, plan.len);
    for (uint32_t i = 0; i < p->buffers.count; i++) {
        const MgnBuffer *b = mgn_buffer(p, i);
        memcpy(e->arena + b->offset, (const char *)p + b->data_offset, b->data_bytes);
        if (b->flags & MGN_BUFFER_STATE)
            for (uint64_t k = 0; k < b->bytes / 4; k++)
                memcpy(e->arena + b->offset + 4 * k, &b->fill, 4);
    }
    *executable = (MgnExecutable *)(void *)e;
    return NULL;
}

/* The host has checked that the bytes are within the buffer. */
static MgnStatus *executable_write(MgnExecutable *executable, uint32_t buffer, uint64_t offset, MgnBytes bytes) {
    Loops *e = (void *)executable;
    if (bytes.len)
        memcpy(e->arena + mgn_buffer(e->plan, buffer)->offset + offset, bytes.data, bytes.len);
    return NULL;
}

static MgnStatus *executable_read(MgnExecutable *executable, uint32_t buffer, uint64_t offset, uint8_t *bytes,
                                  uint64_t len) {
    Loops *e = (void *)executable;
    if (len)
        memcpy(bytes, e->arena + mgn_buffer(e->plan, buffer)->offset + offset, len);
    return NULL;
}

static MgnStatus *executable_run(MgnExecutable *executable, const MgnStep *step, uint64_t *ticket) {
    Loops *e = (void *)executable;
    for (uint32_t i = 0; i < step->scalar_count; i++) {
        const MgnBuffer *b = mgn_buffer(e->plan, step->scalars[i].buffer);
        memcpy(e->arena + b->offset, step->scalars[i].bytes, b->bytes < 4 ? b->bytes : 4);
    }
    save(e, 0);
    for (uint32_t s = 0; s < step->segment_count; s++) {
        const MgnSegment *segment = mgn_segment(e->plan, step->segments[s]);
        if (segment->skip_if != MGN_NONE) {
            float skip;
            memcpy(&skip, e->arena + mgn_buffer(e->plan, segment->skip_if)->offset, 4);
            if (skip != 0)
                continue;
        }
        for (uint32_t i = segment->first; i < segment->first + segment->count; i++) {
            const MgnDispatch *d = mgn_dispatch(e->plan, i);
            if (!indices_ok(e, i, d)) {
                save(e, 1);
                MgnStatus *status = failure(MGN_STATUS_INDEX_OUT_OF_RANGE, "an index is out of range");
                memcpy(status->detail, e->fault, sizeof e->fault);
                return status;
            }
            dispatch(e, d);
        }
    }
    *ticket = 1;
    return NULL;
}

/* Steps are over when they were run. */
static MgnStatus *executable_wait(MgnExecutable *executable, uint64_t ticket, MgnProgress *progress) {
    (void)executable, (void)ticket, (void)progress;
    return NULL;
}

const MgnPlugin *meganeura_plugin_entry(const MgnHost *host) {
    static const MgnPlugin plugin = {
        .struct_size = sizeof plugin,
        .abi_major = MGN_ABI_MAJOR,
        .abi_minor = MGN_ABI_MINOR,
        .plan_oldest = MGN_PLAN_VERSION,
        .plan_newest = MGN_PLAN_VERSION,
        .status_free = status_free,
        .device_count = device_count,
        .device_info = device_info,
        .device_open = device_open,
        .device_close = device_close,
        .device_supports = device_supports,
        .device_compile = device_compile,
        .executable_free = executable_free,
        .executable_write = executable_write,
        .executable_read = executable_read,
        .executable_run = executable_run,
        .executable_wait = executable_wait,
    };
    return host->abi_major == MGN_ABI_MAJOR ? &plugin : NULL;
}

/* Element i of a table of the plan. */
static inline const void *mgn_at(const MgnPlan *plan, const MgnTable *table, uint32_t i) {
    return (const char *)plan + table->offset + (uint64_t)i * table->stride;
}

static inline const MgnBuffer *mgn_buffer(const MgnPlan *plan, uint32_t i) {
    return (const MgnBuffer *)mgn_at(plan, &plan->buffers, i);
}

static inline const MgnDispatch *mgn_dispatch(const MgnPlan *plan, uint32_t i) {
    return (const MgnDispatch *)mgn_at(plan, &plan->dispatches, i);
}

static inline const MgnSegment *mgn_segment(const MgnPlan *plan, uint32_t i) {
    return (const MgnSegment *)mgn_at(plan, &plan->segments, i);
}

/* Operand i of a range: mgn_operand(plan, dispatch->inputs, 0). */
static inline const MgnOperand *mgn_operand(const MgnPlan *plan, MgnRange range, uint32_t i) {
    return (const MgnOperand *)mgn_at(plan, &plan->operands, range.first + i);
}

/* The integers of a range: dimensions, or a list in an attribute. */
static inline const int64_t *mgn_integers(const MgnPlan *plan, MgnRange range) {
    return (const int64_t *)mgn_at(plan, &plan->integers, range.first);
}

/* The bytes of a range: a name or label of range.count bytes, without an end. */
static inline const char *mgn_text(const MgnPlan *plan, MgnRange range) {
    return (const char *)mgn_at(plan, &plan->bytes, range.first);
}

/* Whether a text of the plan is this word. */
static inline int mgn_is(const MgnPlan *plan, MgnRange range, const char *word) {
    return strlen(word) == range.count && memcmp(mgn_text(plan, range), word, range.count) == 0;
}

/* Number of elements of an operand. */
static inline uint64_t mgn_elements(const MgnPlan *plan, const MgnOperand *operand) {
    uint64_t product = 1;
    for (uint32_t i = 0; i < operand->dims.count; i++)
        product *= (uint64_t)mgn_integers(plan, operand->dims)[i];
    return product;
}

/* The attribute of that name, or NULL. */
static inline const MgnAttribute *mgn_attribute(const MgnPlan *plan, MgnRange attributes, const char *name) {
    for (uint32_t i = 0; i < attributes.count; i++) {
        const MgnAttribute *a = (const MgnAttribute *)mgn_at(plan, &plan->attributes, attributes.first + i);
        if (mgn_is(plan, a->name, name))
            return a;
    }
    return NULL;
}

/* Value of an integer or a flag; the default, if there is no such attribute. */
static inline int64_t mgn_int(const MgnPlan *plan, MgnRange attributes, const char *name, int64_t otherwise) {
    const MgnAttribute *a = mgn_attribute(plan, attributes, name);
    return a ? (int64_t)a->value : otherwise;
}

/* Value of a number; the default, if there is no such attribute. */
static inline double mgn_float(const MgnPlan *plan, MgnRange attributes, const char *name, double otherwise) {
    const MgnAttribute *a = mgn_attribute(plan, attributes, name);
    double value = otherwise;
    if (a)
        memcpy(&value, &a->value, sizeof value);
    return value;
}

/* Whether a plan of len bytes begins like one that this header describes. The host checks everything else. */
static inline int mgn_plan_ok(MgnBytes bytes) {
    const MgnPlan *plan = (const MgnPlan *)(const void *)bytes.data;
    return bytes.len >= sizeof(MgnPlan) && memcmp(plan->magic, "MGNPLAN", 8) == 0 &&
           plan->version == MGN_PLAN_VERSION && plan->total_bytes == bytes.len;
}

/*
 * Intervals of shares and totals from sampled units. Pure functions, any thread.
 *
 * A unit is what was sampled as a whole: here a contiguous group of buckets. Samples inside a unit
 * are not independent, so a binomial interval is far too narrow (26 to 48 % instead of 95 %,
 * research: statistics); the variance is taken between units.
 */
#ifndef COLLECTOR_QUERY_INTERVAL_H
#define COLLECTOR_QUERY_INTERVAL_H

#include <stdint.h>

#define EF_INTERVAL_UNITS_MAX 64 /* groups of buckets; 63 degrees of freedom are nearly normal */

/* Sums over units; y belongs to the function, n to everything. All are additive. */
struct ef_ratio {
    double y, n;       /* weighted values */
    double yy, yn, nn; /* Σy², Σyn, Σn² */
    double hits;       /* samples behind y */
    double samples;    /* samples behind n */
    uint32_t units;    /* units with n > 0 */
};

struct ef_share {
    double share, low, high; /* 0 to 1, low <= share <= high */
};

/* A nominal 95 % interval of y / n. Without n: share 0 in [0, 1], for nothing is known. */
struct ef_share ef_interval_share(const struct ef_ratio *ratio);

/*
 * Factors by which a total may be lower and higher, 95 %: low = value × *ret_low. `units` holds the
 * mean value per bucket of each unit in the order of time; successive differences take out slow
 * cycles. coverage: the part of the time that was sampled; what was sampled fully is uncertain only
 * by the sampling ticks.
 */
void ef_interval_total(const double *units, uint32_t unit_count, double samples, double coverage,
                       double *ret_low, double *ret_high);

/* The 97.5 % quantile of Student's t. */
double ef_interval_t(double degrees_of_freedom);

#endif

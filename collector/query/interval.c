/*
 * Decides how wide an interval is. Knows nothing of stacks, buckets or the store. Any thread.
 *
 * The scale is the log of the odds: for small shares it is the log scale of the ratio estimator
 * (s × exp(±t × max(sqrt(V)/s, 1/sqrt(Σy)))), for shares near 1 it cannot leave [0, 1]. The
 * coverage is kept at 92 to 98 % by tests/unit/collector/query/test_interval.c.
 */
#include "collector/query/interval.h"

#include <math.h>
#include <stddef.h>

#include "proto/base/err.h"

#define Z_95 1.959964 /* 97.5 % quantile of the normal distribution */
/*
 * What is assumed of the variation between units while few were seen: a coefficient of variation of
 * 0.5 (chosen: the middle of the range simulated in research/statistics §2), worth PRIOR_DF degrees
 * of freedom. With two units alone, t(1) = 12.7 would make every interval [0, 1]; with the prior
 * the simulation covers at least 92 % from 2 units on, as long as the true variation is not larger.
 */
#define PRIOR_CV 0.5
#define PRIOR_DF 4.0
#define PRIOR_UNITS_MAX 12 /* from here on the data speak alone */

double
ef_interval_t(double df)
{
    /* Student's t, 97.5 %, df 1 to 10: any table, for example NIST/SEMATECH e-Handbook 1.3.6.7.2.
     */
    static const double table[] = {12.7062, 4.3027, 3.1824, 2.7764, 2.5706,
                                   2.4469,  2.3646, 2.3060, 2.2622, 2.2281};
    const size_t known = EF_COUNT_OF(table);
    double z = Z_95, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;

    if (df < 1)
        return table[0];
    if (df <= (double)known) {
        int whole = (int)df;
        return table[whole - 1];
    }
    /* Abramowitz and Stegun 26.7.5; error below 0.0001 for df > 10. */
    return z + (z3 + z) / (4 * df) + (5 * z5 + 16 * z3 + 3 * z) / (96 * df * df) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * df * df * df);
}

/* Relative squared variation of n between units. */
static double
activity_cv2(const struct ef_ratio *ratio)
{
    double mean = ratio->n / ratio->units;
    double variance = ratio->nn / ratio->units - mean * mean;

    return mean > 0 && variance > 0 ? variance / (mean * mean) : 0;
}

/*
 * Nothing hit, or everything: rule of three (95 % upper bound of a Poisson mean with no event),
 * times the design effect 1 + (n_mean (1 + cu²) - 1) × cs² s / (1 - s) at s = 3 / n.
 */
static double
bound_of_three(const struct ef_ratio *ratio)
{
    double share, design;

    if (ratio->samples < 1)
        return 1;
    share = 3 / ratio->samples;
    if (share >= 1)
        return 1;
    design = ratio->samples / ratio->units * (1 + activity_cv2(ratio)) - 1;
    design = 1 + (design > 0 ? design : 0) * PRIOR_CV * PRIOR_CV * share / (1 - share);
    return fmin(1, share * design);
}

/* Half width on the scale of log odds. */
static double
half_width(const struct ef_ratio *ratio, double share)
{
    double units = ratio->units, rest = 1 - share;
    double squares = ratio->yy - 2 * share * ratio->yn + share * share * ratio->nn;
    double floor2 = rest / ratio->hits; /* relative variance if samples were independent */
    double prior2 = floor2 + PRIOR_CV * PRIOR_CV * rest * rest / units;
    double between2 = 0, df = units - 1;

    if (ratio->units > 1 && squares > 0)
        between2 = units / df * squares / (ratio->y * ratio->y);
    if (ratio->units < PRIOR_UNITS_MAX) {
        between2 = (PRIOR_DF * prior2 + df * between2) / (PRIOR_DF + df);
        df += PRIOR_DF;
    }
    return ef_interval_t(df) * sqrt(fmax(between2, floor2)) / rest;
}

struct ef_share
ef_interval_share(const struct ef_ratio *ratio)
{
    struct ef_share ret = {0, 0, 1};
    double odds, factor;

    if (ratio->units == 0 || !(ratio->n > 0))
        return ret;
    ret.share = fmin(1, fmax(0, ratio->y / ratio->n));
    if (ratio->hits < 1 || ret.share <= 0) {
        ret.high = fmax(ret.share, bound_of_three(ratio));
        return ret;
    }
    if (ret.share >= 1 - 1e-12) {
        ret.low = fmin(ret.share, 1 - bound_of_three(ratio));
        return ret;
    }
    odds = ret.share / (1 - ret.share);
    factor = exp(fmin(700, half_width(ratio, ret.share)));
    ret.low = odds / factor / (1 + odds / factor);
    ret.high = odds * factor / (1 + odds * factor);
    return ret;
}

void
ef_interval_total(const double *units, uint32_t unit_count, double samples, double coverage,
                  double *ret_low, double *ret_high)
{
    double sum = 0, steps = 0, relative2, unseen = 1 - fmin(1, fmax(0, coverage)), factor;
    double df = unit_count > 1 ? unit_count - 1.0 : PRIOR_DF;

    *ret_low = 0;
    *ret_high = 1;
    if (samples < 1 || unit_count == 0)
        return;
    for (uint32_t i = 0; i < unit_count; i++) {
        sum += units[i];
        if (i > 0)
            steps += (units[i] - units[i - 1]) * (units[i] - units[i - 1]);
    }
    relative2 = PRIOR_CV * PRIOR_CV / unit_count;
    if (unit_count > 1 && sum > 0)
        relative2 = unit_count * steps / (2 * (unit_count - 1.0)) / (sum * sum);
    relative2 = unseen * relative2 + 1 / samples;
    factor = exp(fmin(700, ef_interval_t(df) * sqrt(relative2)));
    *ret_low = 1 / factor;
    *ret_high = factor;
}

"""The equations of the paper, one number at a time.

A vector is a list of D numbers, a vector-list V a list of C vectors, a set a list of V (the paper's N x C x 3).
Written from the paper, for comparison only: nothing here knows of tensors, or of the library.
"""

import math


def dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


def length(a):
    return math.sqrt(dot(a, a))


def times(s, a):
    return [s * number for number in a]


def plus(a, b):
    return [a[i] + b[i] for i in range(len(a))]


def minus(a, b):
    return [a[i] - b[i] for i in range(len(a))]


def cross(a, b):
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def mean(vectors):
    total = [0.0] * len(vectors[0])
    for vector in vectors:
        total = plus(total, vector)
    return times(1 / len(vectors), total)


def linear(V, W):
    result = []
    for row in W:
        vector = [0.0] * len(V[0])
        for c in range(len(V)):
            vector = plus(vector, times(row[c], V[c]))
        result.append(vector)
    return result


def relu(q, k):
    if dot(q, k) >= 0:
        return q
    unit = times(1 / length(k), k)
    return minus(q, times(dot(q, unit), unit))


def leaky_relu(q, k, slope):
    return plus(times(slope, q), times(1 - slope, relu(q, k)))


def leaky_relu_over(q, k, slope, square):
    """With another number in place of ‖k‖², such as the authors' ‖k‖² + eps."""
    clipped = q if dot(q, k) >= 0 else minus(q, times(dot(q, k) / square, k))
    return plus(times(slope, q), times(1 - slope, clipped))


def own(K, c):
    """The direction of channel c, where K may hold one for all."""
    return K[c] if len(K) > 1 else K[0]


def bend(Q, K, slope):
    return [leaky_relu(Q[c], own(K, c), slope) for c in range(len(Q))]


def split(q, k):
    unit = times(1 / length(k), k)
    along = times(dot(q, unit), unit)
    return along, minus(q, along)


def activation(q, k, h):
    """`h` of the signed coordinate along k, the reading under which h = ReLU is VN-ReLU."""
    unit = times(1 / length(k), k)
    return plus(times(h(dot(q, unit)), unit), split(q, k)[1])


def activation_of_length(q, k, h):
    """The supplement to the letter."""
    along, across = split(q, k)
    return plus(times(h(length(along)) / length(along), along), across)


def mean_pool(elements):
    return [mean([V[c] for V in elements]) for c in range(len(elements[0]))]


def max_pool(elements, directions):
    result = []
    for c in range(len(elements[0])):
        best = 0
        for n in range(len(elements)):
            if dot(directions[n][c], elements[n][c]) > dot(directions[best][c], elements[best][c]):
                best = n
        result.append(elements[best][c])
    return result


def lengths(elements, c, log, eps):
    found = [length(V[c]) + eps for V in elements]
    return [math.log(number) for number in found] if log else found


def moments(numbers):
    middle = sum(numbers) / len(numbers)
    return middle, sum((number - middle) ** 2 for number in numbers) / len(numbers)


def batch_norm(elements, scale, shift, *, running=None, log=False, eps=0.0):
    """BatchNorm of lengths (plus the authors' `eps`), over all elements of all samples; inside, torch's own 1e-5."""
    result = [[] for _ in elements]
    for c in range(len(elements[0])):
        N = lengths(elements, c, log, eps)
        middle, variance = moments(N) if running is None else (running[0][c], running[1][c])
        for b in range(len(elements)):
            changed = scale[c] * (N[b] - middle) / math.sqrt(variance + 1e-5) + shift[c]
            ratio = math.exp(changed) / math.exp(N[b]) if log else changed / N[b]
            result[b].append(times(ratio, elements[b][c]))
    return result


def running_statistics(elements, means, variances, *, momentum, log):
    count = len(elements)
    new_means, new_variances = [], []
    for c in range(len(elements[0])):
        middle, variance = moments(lengths(elements, c, log, 0.0))
        new_means.append((1 - momentum) * means[c] + momentum * middle)
        new_variances.append((1 - momentum) * variances[c] + momentum * variance * count / (count - 1))
    return new_means, new_variances


def standardize(vectors, eps):
    """Mean vector 0, root mean squared length 1, `eps` relative to the mean squared length before."""
    middle = mean(vectors)
    spread = sum(length(minus(v, middle)) ** 2 for v in vectors) / len(vectors)
    size = sum(length(v) ** 2 for v in vectors) / len(vectors)
    return [times(1 / math.sqrt(spread + eps * size), minus(v, middle)) for v in vectors]


def layer_norm(V, scale, eps):
    normal = standardize(V, eps)
    return [times(scale[c], normal[c]) for c in range(len(V))]


def instance_norm(sample, scale, eps):
    result = [[] for _ in sample]
    for c in range(len(sample[0])):
        normal = standardize([V[c] for V in sample], eps)
        for n in range(len(sample)):
            result[n].append(times(scale[c], normal[n]))
    return result


def block(elements, W, U, norm, slope, detached):
    Q = norm([linear(V, W) for V in elements])
    return [bend(Q[n], linear(Q[n] if detached else elements[n], U), slope) for n in range(len(elements))]


def product(V, T):
    """V Tᵀ; with T a frame, VN-In."""
    return [[dot(v, t) for t in T] for v in V]


def with_mean(sample):
    overall = mean_pool(sample)
    return [V + overall for V in sample]


def orthonormal_frame(a, b):
    first = times(1 / length(a), a)
    across = minus(b, times(dot(first, b), first))
    second = times(1 / length(across), across)
    return [first, second, cross(first, second)]


def gram(V):
    return [dot(V[i], V[j]) for i in range(len(V)) for j in range(i, len(V))]


def nearest(features, k, include_self):
    graph = []
    for n in range(len(features)):
        ranked = []
        for m in range(len(features)):
            if m != n or include_self:
                gaps = [minus(features[m][c], features[n][c]) for c in range(len(features[n]))]
                ranked.append((sum(dot(gap, gap) for gap in gaps), m))
        graph.append([m for _, m in sorted(ranked)[:k]])
    return graph


def edge_map(other, center, weights):
    """Θ(V_m - V_n) + Φ V_n, and a third matrix times V_m x V_n where there is one."""
    channels = range(len(other))
    result = linear([minus(other[c], center[c]) for c in channels], weights[0])
    added = [linear(center, weights[1])]
    if len(weights) == 3:
        added.append(linear([cross(other[c], center[c]) for c in channels], weights[2]))
    for term in added:
        result = [plus(result[c], term[c]) for c in range(len(result))]
    return result


def edge_conv(clouds, graphs, feature, direction, norm, slope, pool):
    edges = []
    for cloud, graph in zip(clouds, graphs, strict=True):
        edges += [(cloud[m], cloud[n]) for n in range(len(cloud)) for m in graph[n]]
    Q = norm([edge_map(*edge, feature) for edge in edges])
    bent = (bend(Q[e], edge_map(*edges[e], direction), slope) for e in range(len(edges)))
    return [[pool([next(bent) for _ in neighbors]) for neighbors in graph] for graph in graphs]


def affine(V, A):
    """Every output is the mean of the channels, moved by a weighted sum of how far each channel is from it."""
    middle = mean(V)
    return [plus(middle, moved) for moved in linear([minus(v, middle) for v in V], A)]


def attention(Q, K, V, heads, present):
    """What each of the queries Q gets of the values V, whose keys are K, where they are present."""
    size = len(Q[0]) // heads
    result = []
    for q in Q:
        out = []
        for h in range(heads):
            channels = range(h * size, (h + 1) * size)
            weights = []
            for k, there in zip(K, present, strict=True):
                score = sum(dot(q[c], k[c]) for c in channels) / math.sqrt(len(q[0]) * size)
                weights.append(math.exp(score) if there else 0.0)
            for c in channels:
                vector = [0.0] * len(q[0])
                for m in range(len(V)):
                    vector = plus(vector, times(weights[m] / sum(weights), V[m][c]))
                out.append(vector)
        result.append(out)
    return result

// Marks functions that compilers must not merge into others, where they would leave their loops scalar.

#pragma once

#define APART __attribute__((noinline))

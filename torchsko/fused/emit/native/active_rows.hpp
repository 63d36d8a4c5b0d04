// Iterations of a loop over rows that are not skipped, for C++ and CUDA: their number, then their numbers.

BLOCK void list_active_rows(const V* guard, int stride, int count, int* list) {
  int num = 0;
  for (int k = 0; k < count; ++k) {
    list[1 + num] = k;
    num += in_any_lane(guard[k * stride] != 0);
  }
  list[0] = num;
}

/* What C++ asks of a board without an operating system. TensorFlow Lite Micro calls no pure virtual function and deletes nothing. */
void __cxa_pure_virtual(void);
void __cxa_pure_virtual(void) {
  for (;;) {
  }
}

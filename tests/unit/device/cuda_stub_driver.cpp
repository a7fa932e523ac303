// A library that claims to be a CUDA driver but lacks nearly everything.
extern "C" __attribute__((visibility("default"))) unsigned int cuInit(unsigned int /*flags*/) { return 0; }
extern "C" __attribute__((visibility("default"))) unsigned int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}

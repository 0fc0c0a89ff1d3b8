package org.junit

public annotation class Test

package org.junit.runner

import kotlin.reflect.KClass

public annotation class RunWith(val value: KClass<*>)

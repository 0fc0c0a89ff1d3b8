package androidx.test.platform.app

import android.content.Context
import java.io.File

public class Instrumentation {
    public fun getContext(): Context = Context(File(System.getProperty("module"), "src/androidTest/assets"))

    public fun getTargetContext(): Context = Context(File(System.getProperty("module"), "src/main/assets"))
}

public object InstrumentationRegistry {
    @JvmStatic
    public fun getInstrumentation(): Instrumentation = Instrumentation()
}

// Android and LiteRT for a desktop: assets from a folder, and an interpreter that is LiteRT's own, in a Python process.
package android.content

import android.content.res.AssetManager
import java.io.File

public open class Context(private val root: File) {
    public fun getAssets(): AssetManager = AssetManager(root)
}
